#include "attnres/serve/answer_format.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <utility>

#include "attnres/grammar/free_parts.h"
#include "attnres/serve/api_error.h"

namespace attnres {
namespace {

using Kind = AnswerGrammar::Kind;

std::string text_of(const std::string& field, const Json& value) {
  if (!value.is_string()) refuse(field, "a text", value);
  return value.get<std::string>();
}

// A schema may be sent as JSON or as its text.
AnswerGrammar schema_of(const std::string& field, const Json& value) {
  if (value.is_string()) return {.kind = Kind::json_schema, .text = value.get<std::string>()};
  if (!value.is_object() && !value.is_boolean()) refuse(field, "a JSON schema", value);
  return {.kind = Kind::json_schema, .text = one_line_of(value)};
}

AnswerGrammar choice_of(const std::string& field, const Json& value) {
  AnswerGrammar answer{.kind = Kind::choice};
  if (!value.is_array() || value.empty()) refuse(field, "a list of texts", value);
  for (const Json& choice : value) answer.choices.push_back(text_of(field, choice));
  return answer;
}

AnswerGrammar regex_of(const std::string& field, const Json& value) {
  return {.kind = Kind::regex, .text = text_of(field, value)};
}

AnswerGrammar ebnf_of(const std::string& field, const Json& value) {
  return {.kind = Kind::ebnf, .text = text_of(field, value)};
}

std::optional<AnswerGrammar> read_response_format(const std::string& field, const Json& value) {
  if (!value.is_object()) refuse(field, "an object", value);
  const Json type = value.value("type", Json());
  if (type == "text") return std::nullopt;
  if (type != "json_object" && type != "json_schema") {
    refuse(field + ".type", "text, json_object or json_schema", type);
  }
  const Json within = value.value("json_schema", Json());
  if (within.is_object() && within.contains("schema")) {
    return schema_of(field + ".json_schema.schema", within["schema"]);
  }
  // As llama.cpp's server also takes it.
  if (const Json schema = value.value("schema", Json()); !schema.is_null()) {
    return schema_of(field + ".schema", schema);
  }
  if (type == "json_schema") {
    refuse(field + ".json_schema", "an object with a schema", within);
  }
  return AnswerGrammar{.kind = Kind::json_object};
}

std::optional<AnswerGrammar> read_structured_outputs(const std::string& field, const Json& value) {
  if (!value.is_object()) refuse(field, "an object", value);
  std::optional<AnswerGrammar> answer;
  for (const auto& [name, given] : value.items()) {
    const bool is_schema = name == "json" && given.is_object();   // an empty one too: any JSON
    const bool is_choice = name == "choice" && given.is_array();  // of nothing: refused
    if ((means_nothing(given) && !is_schema && !is_choice) || given == Json(false)) continue;
    const std::string place = fmt::format("{}.{}", field, name);
    if (answer) refuse_as("invalid_value", place, "there is another one beside it; leave one out");
    if (name == "json") {
      answer = schema_of(place, given);
    } else if (name == "regex") {
      answer = regex_of(place, given);
    } else if (name == "choice") {
      answer = choice_of(place, given);
    } else if (name == "grammar") {
      answer = ebnf_of(place, given);
    } else if (name == "json_object" && given == Json(true)) {
      answer = AnswerGrammar{.kind = Kind::json_object};
    } else {
      refuse_unsupported(place, "this server has json, regex, choice, grammar and json_object");
    }
  }
  return answer;
}

struct FormatField {
  const char* name;
  std::optional<AnswerGrammar> (*read)(const std::string& field, const Json& value);
};

template <AnswerGrammar (*Read)(const std::string&, const Json&)>
std::optional<AnswerGrammar> always(const std::string& field, const Json& value) {
  return Read(field, value);
}

constexpr std::array<FormatField, 8> kFields = {{
    {"response_format", read_response_format},
    {"structured_outputs", read_structured_outputs},
    {"guided_json", always<schema_of>},
    {"guided_regex", always<regex_of>},
    {"guided_choice", always<choice_of>},
    {"guided_grammar", always<ebnf_of>},
    {"grammar", always<ebnf_of>},
    {"json_schema", always<schema_of>},
}};

}  // namespace

void read_answer_format(const JsonFields& fields, const Backend& backend, TextRequest* request) {
  std::optional<AnswerGrammar> answer;
  std::string read;  // the field that says it
  for (const FormatField& field : kFields) {
    const Json& value = fields.find(field.name);
    const bool is_schema = field.read == &always<schema_of> && value.is_object();
    const bool is_choice = field.read == &always<choice_of> && value.is_array();
    if (means_nothing(value) && !is_schema && !is_choice) continue;
    std::optional<AnswerGrammar> asked = field.read(field.name, value);
    if (!asked) continue;
    if (answer) {
      refuse_as("invalid_value", field.name, fmt::format("it is beside {}; leave one out", read));
    }
    answer = std::move(asked);
    read = field.name;
  }
  if (!answer) return;
  if (request->reply) answer->free_parts = free_parts_of(*request->reply);
  try {
    request->generation.constraint = backend.constraint(*answer);
  } catch (const std::exception& e) {
    pass_on_shortage(e);
    refuse_as("invalid_value", read, e.what());
  }
}

}  // namespace attnres
