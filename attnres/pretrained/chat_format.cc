#include "attnres/pretrained/chat_format.h"

#include <nlohmann/json.hpp>
#include <string>

#include "attnres/formats/gguf_reader.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

std::string template_in_config(const fs::path& config) {
  const Json object = read_json(config);
  const Json templates = object.is_object() ? object.value("chat_template", Json()) : Json();
  if (templates.is_string()) return templates.get<std::string>();
  if (!templates.is_array()) return "";
  for (const Json& entry : templates) {
    if (entry.is_object() && entry.value("name", "") == "default") {
      return entry.value("template", "");
    }
  }
  return "";
}

std::string template_of(const fs::path& model) {
  if (is_gguf_file(model)) return GgufFile(model).text("tokenizer.chat_template", "");
  if (const fs::path file = model / "chat_template.jinja"; path_exists(file)) {
    return read_file(file);
  }
  if (const fs::path file = model / "tokenizer_config.json"; path_exists(file)) {
    return template_in_config(file);
  }
  return "";
}

}  // namespace

std::optional<ChatFormat> model_chat_format(const fs::path& model) {
  return recognize_chat_format(template_of(model));
}

}  // namespace attnres
