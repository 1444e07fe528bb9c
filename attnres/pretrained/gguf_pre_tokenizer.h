// How text is split before byte pairs are merged, as GGUF files name it ("tokenizer.ggml.pre").
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "attnres/text/hugging_face/tokenizer_json.h"

namespace attnres {

// The name by which llama.cpp splits text, and takes whole pieces for tokens, as this tokenizer
// does; nothing where there is none. It has no normal forms: qwen2 is named so though llama.cpp
// tokenizes text as it is where Qwen's tokenizer makes NFC of it.
std::optional<std::string> gguf_pre_tokenizer(const TokenizerJson& tokenizer);

// A tokenizer that splits text so, without tokens and merges; nothing of names that are not known.
std::optional<TokenizerJson> tokenizer_of_pre(std::string_view name);

// Whether llama.cpp puts a token before texts that are split so, where a file does not say.
bool adds_begin_of_pre(std::string_view name);

// The names that are known, with commas.
std::string known_pre_tokenizers();

}  // namespace attnres
