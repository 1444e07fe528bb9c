// Hugging Face's tokenizer.json: what github.com/huggingface/tokenizers reads and writes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/support/json.h"
#include "attnres/text/hugging_face/added_tokens.h"
#include "attnres/text/hugging_face/bpe.h"

namespace attnres {

// A file with a BPE model. Tokens are as the file writes them, those of bytes by GPT-2's
// characters.
struct TokenizerJson {
  BpeModel::Vocabulary vocabulary;
  BpeModel::Merges merges;  // in the order in which they were learned
  BpeSettings settings;     // but for `bytes`, which the pre-tokenizer says
  std::vector<AddedToken> added_tokens;
  Json normalizer, pre_tokenizer, post_processor, decoder;  // as they stand in the file
};

// What a file says that splits text by one expression and then into bytes, but for its tokens and
// merges.
TokenizerJson byte_level_tokenizer(const std::string& pattern);

// `what` names the text in errors. Throws UnreadTokenizer on models of other kinds and on what is
// not read of BPE (dropout, prefixes of words' parts, suffixes of words), naming it, and Error on
// text that is no such file.
TokenizerJson read_tokenizer_json(std::string_view text, const std::string& what);

// The token that a tokenizer_config.json names under a key, by its text or as an object with it as
// its content; empty where it names none.
std::string named_token(const Json& config, const char* key);

// What a tokenizer_config.json says under a key; `otherwise` where it says neither true nor false.
bool named_flag(const Json& config, const char* key, bool otherwise);

// The text of a file that says this.
std::string write_tokenizer_json(const TokenizerJson& tokenizer);

}  // namespace attnres
