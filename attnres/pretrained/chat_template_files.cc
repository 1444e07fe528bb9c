#include "attnres/pretrained/chat_template_files.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "attnres/formats/gguf_reader.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

std::string template_in(const Json& config) {
  const Json templates = config.value("chat_template", Json());
  if (templates.is_string()) return templates.get<std::string>();
  if (!templates.is_array()) return "";
  for (const Json& entry : templates) {
    if (!entry.is_object() || entry.value("name", Json()) != "default") continue;
    const Json text = entry.value("template", Json());
    return text.is_string() ? text.get<std::string>() : "";
  }
  return "";
}

// A text, or an object with the text and how it is matched.
std::string token_in(const Json& config, const char* key) {
  Json token = config.value(key, Json());
  if (token.is_object()) token = token.value("content", Json());
  return token.is_string() ? token.get<std::string>() : "";
}

std::string token_in(const GgufFile& file, const char* key) {
  const GgufValue* id = file.find(key);
  const GgufValue* all = file.find("tokenizer.ggml.tokens");
  if (id == nullptr || all == nullptr) return "";
  const auto* number = std::get_if<uint32_t>(id);
  const auto* texts = std::get_if<std::vector<std::string>>(all);
  if (number == nullptr || texts == nullptr || *number >= texts->size()) return "";
  return (*texts)[*number];
}

// Beside those of a text's begin and end, as transformers names them and as a GGUF file does.
constexpr std::pair<const char*, const char*> kOtherTokens[] = {
    {"unk_token", "tokenizer.ggml.unknown_token_id"},
    {"sep_token", "tokenizer.ggml.seperator_token_id"},
    {"pad_token", "tokenizer.ggml.padding_token_id"},
    {"cls_token", "tokenizer.ggml.cls_token_id"},
    {"mask_token", "tokenizer.ggml.mask_token_id"}};

template <class TextOf>
std::map<std::string, std::string> other_tokens(TextOf text_of) {
  std::map<std::string, std::string> tokens;
  for (const auto& [name, key] : kOtherTokens) {
    if (std::string text = text_of(name, key); !text.empty()) tokens[name] = std::move(text);
  }
  return tokens;
}

}  // namespace

ChatTemplate read_chat_template(const GgufFile& file) {
  return ChatTemplate(file.text("tokenizer.chat_template", ""),
                      {.begin = token_in(file, "tokenizer.ggml.bos_token_id"),
                       .end = token_in(file, "tokenizer.ggml.eos_token_id"),
                       .others = other_tokens([&](const char* /*name*/, const char* key) {
                         return token_in(file, key);
                       })},
                      "tokenizer.chat_template of " + fs::path(file.path()).filename().string());
}

ChatTemplate read_chat_template(const fs::path& folder) {
  Json config = Json::object();
  if (const fs::path path = folder / "tokenizer_config.json"; path_exists(path)) {
    if (Json read = read_json(path); read.is_object()) config = std::move(read);
  }
  const fs::path jinja = folder / "chat_template.jinja";
  const bool file = path_exists(jinja);
  return ChatTemplate(file ? read_file(jinja) : template_in(config),
                      {.begin = token_in(config, "bos_token"),
                       .end = token_in(config, "eos_token"),
                       .others = other_tokens([&](const char* name, const char* /*key*/) {
                         return token_in(config, name);
                       })},
                      file ? "chat_template.jinja" : "chat_template of tokenizer_config.json");
}

}  // namespace attnres
