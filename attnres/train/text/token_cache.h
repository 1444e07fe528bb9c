// Tokens of plain text that a run has made, for the runs beside it that train on the same: a folder
// .tokens next to theirs, in which each text with its split and its tokenizer has a token folder
// (data/token_folder.h) of two files, what is trained on and what is held out. It may be deleted at
// any time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "attnres/data/corpus.h"
#include "attnres/data/training_tokens.h"
#include "attnres/support/json.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// Where the runs in this folder have the tokens that `key` stands for.
std::filesystem::path cached_tokens_path(const std::filesystem::path& runs, const std::string& key);

// What the note says.
inline constexpr const char* kLeastBytesKept = "least_validation_bytes";
inline constexpr const char* kTokensHashKept = "tokens_hash";

struct CachedTokens {
  std::shared_ptr<const Tokenizer> tokenizer;
  TrainingTokens train;
  std::vector<int32_t> validation;
  Json note;  // what keep_tokens was given
};
// Nothing where there are none, or they are damaged.
std::optional<CachedTokens> find_cached_tokens(const std::filesystem::path& path);
// Throws Error where they cannot be written.
void keep_tokens(const std::filesystem::path& path, const Split& split, const Tokenizer& tokenizer,
                 const Json& note);

}  // namespace attnres
