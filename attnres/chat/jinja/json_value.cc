#include "attnres/chat/jinja/json_value.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace attnres::jinja {

Value value_of(const Json& json, bool written) {
  spend(1);
  const auto text = [&](const std::string& bytes) { return Value::text(Text(bytes, written)); };
  if (json.is_null()) return Value::none();
  if (json.is_boolean()) return Value::boolean(json.get<bool>());
  if (const auto whole = whole_number(json)) return Value::integer(*whole);
  if (json.is_number()) return Value::number(json.get<double>());
  if (json.is_string()) return text(json.get_ref<const std::string&>());
  if (json.is_array()) {
    Values items;
    for (const Json& item : json) items.push_back(value_of(item, written));
    return Value::list(std::move(items));
  }
  Entries entries;
  for (const auto& [key, value] : json.items()) {
    entries.emplace_back(text(key), value_of(value, written));
  }
  return Value::dict(std::move(entries));
}

}  // namespace attnres::jinja
