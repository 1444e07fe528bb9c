#include "attnres/serve/json_fields.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "attnres/serve/api_error.h"
#include "attnres/support/error.h"

namespace attnres {

void refuse(const std::string& field, const std::string& expected, const Json& got) {
  throw ApiError(400, "invalid_value",
                 fmt::format("{}: expected {}, got {}", field, expected, shown(got)));
}

JsonFields::JsonFields(const std::string& body) {
  try {
    object_ = parse_json(body, "the request's body");
  } catch (const Error& e) {
    throw ApiError(400, "invalid_json", e.what());
  }
  if (!object_.is_object()) refuse("the request's body", "a JSON object", object_);
}

const Json& JsonFields::find(const std::string& name) const {
  static const Json none;
  const auto found = object_.find(name);
  return found == object_.end() ? none : *found;
}

bool JsonFields::flag(const std::string& name, bool otherwise) const {
  const Json& value = find(name);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) refuse(name, "true or false", value);
  return value.get<bool>();
}

double JsonFields::number(const std::string& name, double otherwise) const {
  const Json& value = find(name);
  if (value.is_null()) return otherwise;
  if (!value.is_number() || !std::isfinite(value.get<double>())) refuse(name, "a number", value);
  return value.get<double>();
}

int64_t JsonFields::whole(const std::string& name, int64_t otherwise, int64_t least,
                          int64_t most) const {
  const Json& value = find(name);
  if (value.is_null()) return otherwise;
  const std::optional<int64_t> given = whole_number(value);
  if (!given || *given < least || *given > most) {
    const bool bounded = most < std::numeric_limits<int64_t>::max();
    refuse(name,
           bounded ? fmt::format("a whole number from {} to {}", least, most)
                   : fmt::format("a whole number of {} or more", least),
           value);
  }
  return *given;
}

std::string JsonFields::text(const std::string& name, const std::string& otherwise) const {
  const Json& value = find(name);
  if (value.is_null()) return otherwise;
  if (!value.is_string()) refuse(name, "a text", value);
  return value.get<std::string>();
}

std::vector<std::string> JsonFields::texts(const std::string& name) const {
  const Json& value = find(name);
  if (value.is_null()) return {};
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) refuse(name, "a text or a list of texts", value);
  std::vector<std::string> texts;
  for (const Json& text : value) {
    if (!text.is_string()) refuse(name, "a list of texts", value);
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

void JsonFields::require_none(const std::string& name) const {
  const Json& value = find(name);
  const bool none = value.is_null() || (value.is_array() && value.empty()) ||
                    (value.is_string() && value.get_ref<const std::string&>().empty());
  if (none) return;
  throw ApiError(400, "unsupported", fmt::format("{}: this server does not have it", name));
}

std::optional<std::vector<int32_t>> as_ids(const Json& list) {
  if (!list.is_array()) return std::nullopt;
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    const std::optional<int64_t> number = whole_number(id);
    if (!number || *number < 0 || *number > std::numeric_limits<int32_t>::max())
      return std::nullopt;
    ids.push_back(static_cast<int32_t>(*number));
  }
  return ids;
}

}  // namespace attnres
