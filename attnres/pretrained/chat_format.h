// How a model was taught conversations.
#pragma once

#include <filesystem>
#include <optional>

#include "attnres/text/chat_template.h"

namespace attnres {

// Told from the Jinja template that comes with a model: chat_template.jinja, `chat_template` of
// tokenizer_config.json (of several, the one named "default"), or a GGUF file's
// tokenizer.chat_template. Plain where there is none; nothing where its format is not known.
std::optional<ChatFormat> model_chat_format(const std::filesystem::path& model);

}  // namespace attnres
