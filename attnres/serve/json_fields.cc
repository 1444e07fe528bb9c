#include "attnres/serve/json_fields.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "attnres/serve/api_error.h"
#include "attnres/serve/http_bodies.h"
#include "attnres/support/error.h"
#include "attnres/support/memory.h"

namespace attnres {

void refuse(const std::string& field, const std::string& expected, const Json& got) {
  refuse_as("invalid_value", field, fmt::format("expected {}, got {}", expected, shown(got)));
}

void refuse_as(const std::string& code, const std::string& field, const std::string& why) {
  throw ApiError(400, code, fmt::format("{}: {}", field, why), field.substr(0, field.find(':')));
}

void refuse_unsupported(const std::string& field, const std::string& why) {
  refuse_as("unsupported", field, why);
}

bool means_nothing(const Json& value) {
  return (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         (!value.is_primitive() && value.empty()) || value.is_null();
}

JsonFields::Turn::Turn(const std::string& body) {
  static std::mutex one_large_body;
  if (HttpBodies::is_large(std::ssize(body))) lock_ = std::unique_lock(one_large_body);
}

JsonFields::Turn::~Turn() {
  if (lock_.owns_lock()) give_back_freed_memory();
}

JsonFields::JsonFields(const std::string& body) : turn_(body) {
  constexpr const char* kBody = "the request's body";
  try {
    object_.json = parse_json(body, kBody);
  } catch (const Error& e) {
    throw ApiError(400, "invalid_json", e.what());
  }
  if (object_.json.is_object()) return;
  throw ApiError(400, "invalid_value",
                 fmt::format("{}: expected a JSON object, got {}", kBody, shown(object_.json)));
}

const Json& JsonFields::find(const std::string& name) const {
  static const Json none;
  const auto found = object_.json.find(name);
  return found == object_.json.end() ? none : *found;
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

uint64_t JsonFields::bits(const std::string& name, uint64_t otherwise) const {
  const Json& value = find(name);
  if (value.is_null()) return otherwise;
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (!value.is_number_integer()) refuse(name, "a whole number from -2^63 to 2^64 - 1", value);
  return static_cast<uint64_t>(value.get<int64_t>());
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
  if (means_nothing(value)) return;
  refuse_unsupported(name, fmt::format("this server does not have it, got {}", shown(value)));
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
