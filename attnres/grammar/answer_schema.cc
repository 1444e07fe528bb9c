#include "attnres/grammar/answer_schema.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "attnres/grammar/regex.h"
#include "attnres/grammar/schema_facts.h"
#include "attnres/grammar/string_formats.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using Words = std::vector<std::string>;

constexpr size_t kDeepest = 50;  // schemas in each other
constexpr int64_t kLargestNumber = 999'999'999'999'999;
constexpr int64_t kMostRepeats = 1'000'000;         // of characters and items
constexpr int64_t kMostCountedProperties = 10'000;  // properties times how many there may be
constexpr double kNarrowest = 1e-5;   // range of numbers: they have 6 decimals at most
constexpr size_t kMostParts = 2'000;  // schemas, and values that they list

const Words& annotations() {
  static const Words words = {"title",      "description", "default",  "examples",
                              "deprecated", "readOnly",    "$comment", "$schema",
                              "writeOnly",  "$id",         "$anchor",  "discriminator"};
  return words;
}

std::string within(const std::string& place, std::string_view name) {
  return fmt::format("{}/{}", place, name);
}

bool is_in(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Keywords of values of one type.
const std::map<std::string, Words>& type_keywords() {
  static const Words kNumber = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                "multipleOf"};
  static const std::map<std::string, Words> keywords = {
      {"null", {}},
      {"boolean", {}},
      {"integer", kNumber},
      {"number", kNumber},
      {"string", {"minLength", "maxLength", "pattern", "format"}},
      {"array", {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}},
      {"object",
       {"properties", "required", "additionalProperties", "minProperties", "maxProperties"}}};
  return keywords;
}

class SchemaReader {
 public:
  SchemaReader(const Json& root, const std::function<void(const Json&)>& check_part)
      : root_(root), check_part_(check_part) {}

  Json read() {
    Json schema = read(root_, "#", 0);
    for (const auto& [place, target] : references_) {
      demand(places_.contains(target), within(place, "$ref"), "there is no schema at {}", target);
    }
    demand(has_finite_value(root_), "#", "every value has another one in it, without an end");
    return schema;
  }

 private:
  template <class... Args>
  static void demand(bool condition, const std::string& place, fmt::format_string<Args...> format,
                     Args&&... args) {
    if (!condition) {
      fail("{}: {}", place, fmt::format(format, std::forward<Args>(args)...));
    }
  }

  Json read(const Json& schema, const std::string& place, size_t depth) {
    demand(depth <= kDeepest, "#", "schemas are nested deeper than {}; use $ref", kDeepest);
    count_part();
    places_.insert(place);
    demand(schema.is_object() || schema.is_boolean(), place, "expected a schema, got {}",
           shown(schema));
    if (schema.is_boolean()) {
      demand(schema.get<bool>(), place, "no value meets false");
      return schema;
    }
    Json result = Json::object();
    for (const char* name : {"$defs", "definitions"}) {
      if (!schema.contains(name)) continue;
      result[name] = read_each(schema[name], within(place, name), depth);
    }
    const std::string form = form_of(schema, place);
    if (form == "$ref") {
      result[form] = read_reference(schema[form], place);
    } else if (form == "const" || form == "enum") {
      read_values(schema, form, place, &result);
    } else if (!form.empty()) {
      const std::string choices = within(place, form);
      result[form == "oneOf" ? "anyOf" : form] = read_choices(schema[form], form, choices, depth);
      demand(
          form != "oneOf" || exclude_each_other(schema[form], root_), choices,
          "a value may meet several of them at once, which answers cannot be kept from; tell them "
          "apart by type or by a required property with a const, or write anyOf");
    } else {
      read_typed(schema, place, depth, &result);
    }
    return result;
  }

  // Which keyword says it all; empty: the type's.
  static std::string form_of(const Json& schema, const std::string& place) {
    static const Words kForms = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
    std::string form;
    for (const std::string& name : kForms) {
      if (form.empty() && schema.contains(name)) form = name;
    }
    for (const auto& [name, value] : schema.items()) {
      if (is_in(annotations(), name) || name.starts_with("x-") || name == "$defs" ||
          name == "definitions" || name == form) {
        continue;
      }
      const bool is_known =
          name == "type" ||
          std::any_of(type_keywords().begin(), type_keywords().end(),
                      [&name = name](const auto& of) { return is_in(of.second, name); });
      demand(is_known || is_in(kForms, name), within(place, name),
             "answers cannot be kept to this keyword");
      const bool fits = form.empty() || (name == "type" && (form == "const" || form == "enum"));
      demand(fits, within(place, name), "answers cannot be kept to this beside {}; leave one out",
             form);
    }
    return form;
  }

  Json read_each(const Json& schemas, const std::string& place, size_t depth) {
    demand(schemas.is_object(), place, "expected an object of schemas, got {}", shown(schemas));
    Json result = Json::object();
    for (const auto& [name, schema] : schemas.items()) {
      result[name] = read(schema, within(place, name), depth + 1);
    }
    return result;
  }

  Json read_reference(const Json& target, const std::string& place) {
    const std::string text = target.is_string() ? target.get<std::string>() : "";
    demand((text == "#" || text.starts_with("#/")) && text.find_first_of("~%") == text.npos,
           within(place, "$ref"), "expected a place in this schema, such as #/$defs/name, got {}",
           shown(target));
    references_.emplace_back(place, text);
    return target;
  }

  void read_values(const Json& schema, const std::string& form, const std::string& place,
                   Json* result) {
    const Json& given = schema[form];
    demand(form == "const" || (given.is_array() && !given.empty()), within(place, "enum"),
           "expected a list of values, got {}", shown(given));
    const Json values = form == "const" ? Json::array({given}) : given;
    const Words types = schema.contains("type") ? types_of(schema["type"], place) : Words();
    for (const Json& value : values) {
      count_part();
      check_numbers(value, within(place, form));
      const bool fits =
          types.empty() || std::any_of(types.begin(), types.end(), [&](const std::string& type) {
            return is_of_type(value, type);
          });
      demand(fits, within(place, form), "{} is not of type {}", shown(value),
             fmt::join(types, " or "));
    }
    (*result)[form] = given;
  }

  // XGrammar keeps whole numbers as int64, and others as double.
  void check_numbers(const Json& value, const std::string& place) const {
    if (value.is_number_unsigned()) {
      demand(whole_number(value).has_value(), place, "{} has more than 63 bits", shown(value));
    }
    if (value.is_structured()) {
      for (const Json& item : value) check_numbers(item, place);
    }
  }

  Json read_choices(const Json& schemas, const std::string& form, const std::string& place,
                    size_t depth) {
    demand(schemas.is_array() && !schemas.empty(), place, "expected a list of schemas, got {}",
           shown(schemas));
    demand(form != "allOf" || schemas.size() == 1, place,
           "answers cannot be kept to several schemas at once; write them as one");
    Json result = Json::array();
    for (size_t i = 0; i < schemas.size(); ++i) {
      result.push_back(read(schemas[i], fmt::format("{}/{}", place, i), depth + 1));
    }
    return result;
  }

  Words types_of(const Json& given, const std::string& place) const {
    Words types;
    for (const Json& type : given.is_array() ? given : Json::array({given})) {
      demand(type.is_string() && type_keywords().contains(type.get<std::string>()),
             within(place, "type"),
             "expected null, boolean, integer, number, string, array or object, got {}",
             shown(type));
      types.push_back(type.get<std::string>());
    }
    demand(!types.empty(), within(place, "type"), "expected a type");
    return types;
  }

  // Without a type what there is for lists and objects says it.
  Words types_of_schema(const Json& schema, const std::string& place) const {
    if (schema.contains("type")) return types_of(schema["type"], place);
    if (schema.contains("properties") || schema.contains("additionalProperties")) return {"object"};
    if (schema.contains("items") || schema.contains("prefixItems")) return {"array"};
    for (const auto& [type, keywords] : type_keywords()) {
      for (const std::string& name : keywords) {
        demand(!schema.contains(name), within(place, name), "say of which type, with \"type\"");
      }
    }
    return {};
  }

  void read_typed(const Json& schema, const std::string& place, size_t depth, Json* result) {
    const Words types = types_of_schema(schema, place);
    if (types.empty()) return;
    (*result)["type"] = types.size() == 1 ? Json(types[0]) : Json(types);
    for (const std::string& type : types) {
      Json part = {{"type", type}};
      if (type == "array") {
        read_array(schema, place, depth, &part);
      } else if (type == "object") {
        read_object(schema, place, depth, &part);
      } else {
        read_bounds(schema, type, place, &part);
      }
      part.erase("type");
      result->update(part);
    }
  }

  void read_bounds(const Json& schema, const std::string& type, const std::string& place,
                   Json* part) {
    for (const std::string& name : type_keywords().at(type)) {
      if (schema.contains(name)) (*part)[name] = schema[name];
    }
    if (type == "string") read_string(place, part);
    if (type == "integer") round_bounds(part);
    if (type == "number" || type == "integer") check_numeric_bounds(place, part);
    if (part->size() == 1 || !checked_.insert(part->dump()).second) return;
    try {
      check_part_(*part);
    } catch (const std::exception& e) {
      demand(false, place, "{}", e.what());
    }
  }

  // Where there is a bound on one side, XGrammar writes digits without end on the other.
  static void check_numeric_bounds(const std::string& place, Json* part) {
    for (const auto& [name, bound] : part->items()) {
      demand(name == "type" || bound.is_number(), within(place, name), "expected a number, got {}",
             shown(bound));
    }
    const auto bound = [&](const char* inclusive, const char* exclusive) {
      const char* name = part->contains(inclusive) ? inclusive : exclusive;
      return part->contains(name) ? std::optional((*part)[name].get<double>()) : std::nullopt;
    };
    const auto below = bound("minimum", "exclusiveMinimum");
    const auto above = bound("maximum", "exclusiveMaximum");
    demand(!part->contains("multipleOf") || (below && above), within(place, "multipleOf"),
           "answers cannot be kept to this without a minimum and a maximum");
    demand(!below || *below < kLargestNumber, place, "there is no such number up to {}",
           kLargestNumber);
    demand(!above || *above > -kLargestNumber, place, "there is no such number from -{}",
           kLargestNumber);
    const bool is_wide = !below || !above || *above - *below >= kNarrowest || *above == *below;
    demand((*part)["type"] == "integer" || is_wide, place,
           "answers have 6 decimals at most, and there may be no such number; leave a range of {}",
           kNarrowest);
    if (below.has_value() == above.has_value()) return;
    const char* largest = below ? "maximum" : "minimum";
    (*part)[largest] = below ? kLargestNumber : -kLargestNumber;
  }

  // Those of whole numbers may be between two of them.
  static void round_bounds(Json* part) {
    for (const auto& [name, rounded] :
         {std::pair{"minimum", +[](double x) { return std::ceil(x); }},
          std::pair{"exclusiveMaximum", +[](double x) { return std::ceil(x); }},
          std::pair{"maximum", +[](double x) { return std::floor(x); }},
          std::pair{"exclusiveMinimum", +[](double x) { return std::floor(x); }}}) {
      const Json bound = part->value(name, Json());
      if (!bound.is_number_float() || std::abs(bound.get<double>()) > kLargestNumber) continue;
      (*part)[name] = static_cast<int64_t>(rounded(bound.get<double>()));
    }
  }

  void read_string(const std::string& place, Json* part) const {
    check_counts(*part, "minLength", "maxLength", place);
    for (const char* name : {"pattern", "format"}) {
      demand(!part->contains(name) || (*part)[name].is_string(), within(place, name),
             "expected a text, got {}", shown(part->value(name, Json())));
    }
    const std::string format = part->value("format", "");
    if (is_any_text(format)) part->erase("format");
    if (part->contains("format")) read_format(format, place, part);
    demand(!part->contains("pattern") || part->size() == 2, within(place, "pattern"),
           "answers cannot be kept to this beside other bounds of a text; leave one out");
    if (!part->contains("pattern")) return;
    try {
      (*part)["pattern"] = json_pattern((*part)["pattern"].get<std::string>());
    } catch (const Error& e) {
      demand(false, within(place, "pattern"), "{}", e.what());
    }
  }

  static void read_format(const std::string& name, const std::string& place, Json* part) {
    const StringFormat* format = string_format(name);
    demand(format != nullptr, within(place, "format"), "expected one of {}, got {}",
           fmt::join(string_format_names(), ", "), shown(Json(name)));
    demand(!part->contains("pattern"), within(place, "format"),
           "answers cannot be kept to this beside a pattern; leave one out");
    const bool fits =
        *whole_number(part->value("minLength", Json(0))) <= format->shortest &&
        *whole_number(part->value("maxLength", Json(format->longest))) >= format->longest;
    demand(fits, within(place, "format"),
           "answers of it have {} to {} characters, and minLength and maxLength others",
           format->shortest, format->longest);
    *part = {{"type", "string"}, {"pattern", format->pattern}};
  }

  // Of characters, items or properties. The first is the least.
  static void check_counts(const Json& part, const char* least, const char* most,
                           const std::string& place) {
    for (const char* name : {least, most}) {
      const auto count = whole_number(part.value(name, Json(0)));
      demand(count && *count >= 0 && *count <= kMostRepeats, within(place, name),
             "expected a whole number from 0 to {}, got {}", kMostRepeats,
             shown(part.value(name, Json())));
    }
    const bool fits = !part.contains(least) || !part.contains(most) ||
                      *whole_number(part[least]) <= *whole_number(part[most]);
    demand(fits, within(place, least), "is more than {}", most);
  }

  void read_array(const Json& schema, const std::string& place, size_t depth, Json* part) {
    demand(schema.value("uniqueItems", Json(false)) == Json(false), within(place, "uniqueItems"),
           "answers cannot be kept to this keyword");
    for (const char* name : {"minItems", "maxItems"}) {
      if (schema.contains(name)) (*part)[name] = schema[name];
    }
    check_counts(*part, "minItems", "maxItems", place);
    const Json items = schema.value("items", Json(true));
    (*part)["items"] =
        items == Json(false) ? items : read(items, within(place, "items"), depth + 1);
    if (!schema.contains("prefixItems")) return;
    const Json& first = schema["prefixItems"];
    demand(first.is_array() && !first.empty(), within(place, "prefixItems"),
           "expected a list of schemas, got {}", shown(first));
    for (size_t i = 0; i < first.size(); ++i) {
      const std::string item_place = fmt::format("{}/prefixItems/{}", place, i);
      Json item = read(first[i], item_place, depth + 1);
      (*part)["prefixItems"].push_back(item.is_boolean() ? Json::object() : std::move(item));
    }
    const auto count = static_cast<int64_t>(first.size());
    demand(*whole_number(part->value("maxItems", Json(count))) >= count, within(place, "maxItems"),
           "is less than the {} of prefixItems", count);
  }

  void read_object(const Json& schema, const std::string& place, size_t depth, Json* part) {
    for (const char* name : {"minProperties", "maxProperties"}) {
      if (schema.contains(name)) (*part)[name] = schema[name];
    }
    check_counts(*part, "minProperties", "maxProperties", place);
    const bool named = schema.contains("properties") && !schema["properties"].empty();
    if (named) {
      (*part)["properties"] = read_each(schema["properties"], within(place, "properties"), depth);
    }
    read_required(schema, place, part);
    Json others = schema.value("additionalProperties", Json(!named));
    if (named && others == Json(true)) others = false;
    (*part)["additionalProperties"] =
        others == Json(false) ? others
                              : read(others, within(place, "additionalProperties"), depth + 1);

    const auto properties = named ? static_cast<int64_t>(schema["properties"].size()) : int64_t{0};
    const int64_t least = *whole_number(part->value("minProperties", Json(0)));
    if (others == Json(false)) {
      demand(least <= properties, within(place, "minProperties"), "there are {} properties",
             properties);
    } else {
      // An answer may have a name twice.
      demand(least <= 1, within(place, "minProperties"),
             "answers cannot be kept to more than 1 of properties that have no names");
    }
    const int64_t counted = std::max(least, *whole_number(part->value("maxProperties", Json(0))));
    demand(properties * std::min(counted, properties) <= kMostCountedProperties, place,
           "there are too many properties to count; leave out minProperties and maxProperties");
  }

  static void read_required(const Json& schema, const std::string& place, Json* part) {
    if (!schema.contains("required")) return;
    const Json& required = schema["required"];
    demand(required.is_array(), within(place, "required"), "expected a list of names, got {}",
           shown(required));
    for (const Json& name : required) {
      demand(name.is_string(), within(place, "required"), "expected names, got {}", shown(name));
      demand(
          part->contains("properties") && (*part)["properties"].contains(name.get<std::string>()),
          within(place, "required"), "{} is not among properties", shown(name));
    }
    (*part)["required"] = required;
  }

  void count_part() {
    demand(++parts_ <= kMostParts, "#", "it has more than {} schemas and values", kMostParts);
  }

  const Json& root_;
  size_t parts_ = 0;
  const std::function<void(const Json&)>& check_part_;
  std::set<std::string> places_;                                 // of schemas
  std::vector<std::pair<std::string, std::string>> references_;  // from where, to where
  std::set<std::string> checked_;                                // parts
};

}  // namespace

Json answer_schema(const Json& schema, const std::function<void(const Json&)>& check_part) {
  return SchemaReader(schema, check_part).read();
}

}  // namespace attnres
