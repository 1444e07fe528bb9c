// Tokenizing files into a folder that training reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "attnres/chat/chat_template.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

struct TokenizeFolderOptions {
  std::filesystem::path model;  // whose tokenizer it is; empty where that is no model's
  std::vector<std::string> data;
  std::string out, field;
  bool chat = false, strict = false;
  int64_t tokens_a_file = 100'000'000;
};

// Shows progress and what was left out. Throws Interrupted, and has saved, when the user stops it.
void tokenize_into_folder(const TokenizeFolderOptions& options, const Tokenizer& tokenizer,
                          const ChatTemplate& chat_template);

// Reads all of a folder that was written, and says what it found. Throws Error where it is damaged.
void verify_folder(const std::string& folder);

// With a tokenizer that is trained on the first 64 MB of the data, or on as much of each file, and
// lies in the folder afterwards.
void tokenize_with_own(const TokenizeFolderOptions& options, const TokenizerConfig& config);

}  // namespace attnres
