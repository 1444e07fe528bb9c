// Tokenized text on disk, as `attnres tokenize --out` writes it and training maps it into memory. A
// folder holds
//   tokens.json        the index: which tokenizer, and the files
//   tokens-00000.bin   token ids one after another, each document followed by the end of document,
//                      as little-endian numbers of 2 bytes, or of 4 for vocabularies above 65536
//                      and where some tokens are no targets (kNoTarget, training_tokens.h)
//   tokens-00000.ends  where its documents end, in tokens: little-endian numbers of 8 bytes. A
//                      document that is longer than a file ends in a later one
//   tokenizer's files  by which it is loaded again
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnres/data/training_tokens.h"
#include "attnres/support/json.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

struct TokenFile {
  std::string name = {};  // tokens-00000.bin
  int64_t tokens = 0;
  int64_t documents = 0;  // that end in it
  int64_t text_bytes = 0;
  uint64_t hash = 0;  // XXH3 of its bytes
};

struct TokenIndex {
  std::string tokenizer = {};  // its kind
  int64_t vocab_size = 0;
  uint64_t tokenizer_hash = 0;
  int width = 2;  // bytes a token
  std::vector<TokenFile> files = {};
  // How the text was read, so that who goes on reads it alike, and how far; of a finished folder
  // what was found on the way.
  Json source = {};
  bool finished = false;

  int64_t tokens() const;
  int64_t documents() const;
  int64_t text_bytes() const;
  bool marks_targets() const;  // whether some tokens have kNoTarget
  uint64_t hash() const;       // identity of the tokens
};

std::filesystem::path token_index_path(const std::filesystem::path& folder);
// Whether the folder holds tokens.
bool is_token_folder(const std::filesystem::path& folder);
// Throws Error where it is missing, damaged, or of another version.
TokenIndex read_token_index(const std::filesystem::path& folder);
void write_token_index(const std::filesystem::path& folder, const TokenIndex& index);

// Bytes that a token of this vocabulary takes.
int token_width(int64_t vocab_size, bool marks_targets);

// Maps the files. Throws Error where tokenizing did not finish, and naming a file that is gone or
// has another length than the index says.
TrainingTokens open_token_folder(const std::filesystem::path& folder, const TokenIndex& index);

// Throws Error unless the tokens are this tokenizer's.
void require_tokens_of(const TokenIndex& index, const Tokenizer& tokenizer,
                       const std::filesystem::path& folder);

}  // namespace attnres
