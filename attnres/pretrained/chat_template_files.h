// How a model was taught conversations.
#pragma once

#include <filesystem>

#include "attnres/chat/chat_template.h"

namespace attnres {

class GgufFile;

// The Jinja template that comes with a model or a tokenizer: chat_template.jinja, `chat_template`
// of tokenizer_config.json (of several, the one named "default"), or a GGUF file's
// tokenizer.chat_template; with the special tokens that tokenizer_config.json or the file names,
// as of the begin and the end of a text. Plain where there is none. Throws Error on files that
// cannot be read.
ChatTemplate read_chat_template(const std::filesystem::path& folder);
ChatTemplate read_chat_template(const GgufFile& file);

}  // namespace attnres
