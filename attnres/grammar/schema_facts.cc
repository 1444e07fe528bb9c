#include "attnres/grammar/schema_facts.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace attnres {
namespace {

constexpr int kMostReferences = 32;  // one after another

// What it refers to, if it does.
const Json& resolved(const Json& schema, const Json& root) {
  const Json* found = &schema;
  for (int i = 0; i < kMostReferences && found->is_object() && found->contains("$ref"); ++i) {
    const Json& place = (*found)["$ref"];
    const Json* next = place.is_string() ? schema_at(root, place.get<std::string>()) : nullptr;
    if (next == nullptr) break;
    found = next;
  }
  return *found;
}

// The values that it lists; nothing where it does not.
std::optional<Json> listed_values(const Json& schema) {
  if (!schema.is_object()) return std::nullopt;
  if (schema.contains("const")) return Json::array({schema["const"]});
  const Json values = schema.value("enum", Json());
  return values.is_array() ? std::optional(values) : std::nullopt;
}

// Of its values; empty where that is not known.
std::set<std::string> types_of_values(const Json& schema) {
  std::set<std::string> types;
  if (!schema.is_object()) return types;
  for (const char* type : {"null", "boolean", "integer", "number", "string", "array", "object"}) {
    for (const Json& value : listed_values(schema).value_or(Json::array())) {
      if (is_of_type(value, type)) types.insert(type);
    }
  }
  const Json given = schema.value("type", Json::array());
  for (const Json& type : given.is_array() ? given : Json::array({given})) {
    if (type.is_string()) types.insert(type);
  }
  if (types.contains("integer")) types.insert("number");
  return types;
}

bool have_common(const Json& values, const Json& others) {
  return std::any_of(values.begin(), values.end(), [&](const Json& value) {
    return std::find(others.begin(), others.end(), value) != others.end();
  });
}

// Some property that both have to have is of other values in each.
bool tell_by_property(const Json& schema, const Json& other, const Json& root) {
  const Json none = Json::array();
  for (const Json& name : schema.value("required", none)) {
    const Json of_other = other.value("required", none);
    if (!name.is_string() || std::find(of_other.begin(), of_other.end(), name) == of_other.end()) {
      continue;
    }
    const auto values = [&](const Json& of) {
      const Json properties = of.value("properties", Json());
      const Json property =
          properties.is_object() ? properties.value(name.get<std::string>(), Json()) : Json();
      return listed_values(resolved(property, root));
    };
    const auto first = values(schema), second = values(other);
    if (first && second && !have_common(*first, *second)) return true;
  }
  return false;
}

bool exclude(const Json& schema, const Json& other, const Json& root) {
  const std::set<std::string> types = types_of_values(schema), others = types_of_values(other);
  if (types.empty() || others.empty()) return false;
  std::vector<std::string> common;
  std::set_intersection(types.begin(), types.end(), others.begin(), others.end(),
                        std::back_inserter(common));
  if (common.empty()) return true;
  const auto values = listed_values(schema), of_other = listed_values(other);
  if (values && of_other) return !have_common(*values, *of_other);
  return common == std::vector<std::string>{"object"} && tell_by_property(schema, other, root);
}

class Finiteness {
 public:
  explicit Finiteness(const Json& root) : root_(root) {}

  bool of(const Json& schema) {
    if (!schema.is_object()) return true;
    const auto known = known_.find(&schema);
    if (known != known_.end()) return known->second;
    known_[&schema] = false;  // within itself
    const bool is_finite = find(schema);
    if (is_finite) {
      known_[&schema] = true;
    } else {
      known_.erase(&schema);
    }
    return is_finite;
  }

 private:
  bool find(const Json& schema) {
    if (schema.contains("$ref")) {
      const Json& place = schema["$ref"];
      const Json* target = place.is_string() ? schema_at(root_, place.get<std::string>()) : nullptr;
      return target == nullptr || of(*target);
    }
    for (const char* name : {"anyOf", "oneOf", "allOf"}) {
      const auto choices = schema.find(name);
      if (choices == schema.end() || !choices->is_array()) continue;
      return std::any_of(choices->begin(), choices->end(),
                         [&](const Json& choice) { return of(choice); });
    }
    return has_finite_object(schema) && has_finite_list(schema);
  }

  bool has_finite_object(const Json& schema) {
    const auto properties = schema.find("properties");
    const auto required = schema.find("required");
    if (properties == schema.end() || required == schema.end()) return true;
    return std::all_of(required->begin(), required->end(), [&](const Json& name) {
      const auto property =
          name.is_string() ? properties->find(name.get<std::string>()) : properties->end();
      return property == properties->end() || of(*property);
    });
  }

  bool has_finite_list(const Json& schema) {
    const auto first = schema.find("prefixItems");
    if (first != schema.end() &&
        !std::all_of(first->begin(), first->end(), [&](const Json& item) { return of(item); })) {
      return false;
    }
    const auto items = schema.find("items");
    const int64_t least = whole_number(schema.value("minItems", Json(0))).value_or(0);
    return items == schema.end() || least == 0 || of(*items);
  }

  const Json& root_;
  std::map<const Json*, bool> known_;
};

}  // namespace

const Json* schema_at(const Json& root, const std::string& place) {
  if (place == "#") return &root;
  if (!place.starts_with("#/")) return nullptr;
  const Json* found = &root;
  for (size_t begin = 2; begin <= place.size();) {
    const size_t end = std::min(place.find('/', begin), place.size());
    const std::string name = place.substr(begin, end - begin);
    const auto next = found->is_object() ? found->find(name) : found->end();
    if (next == found->end()) return nullptr;
    found = &*next;
    begin = end + 1;
  }
  return found;
}

bool is_of_type(const Json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  return whole_number(value).has_value();
}

bool exclude_each_other(const Json& schemas, const Json& root) {
  for (size_t i = 0; i < schemas.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (!exclude(resolved(schemas[i], root), resolved(schemas[j], root), root)) return false;
    }
  }
  return true;
}

bool has_finite_value(const Json& root) {
  return Finiteness(root).of(root);
}

}  // namespace attnres
