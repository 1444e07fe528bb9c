// Files of tokens that other programs write.
#pragma once

#include <filesystem>

#include "attnres/data/training_tokens.h"

namespace attnres {

// Whether the path names a file that ends in .bin.
bool is_token_bin(const std::filesystem::path& path);

// Maps one of
//   nanoGPT's   numbers of 2 bytes, and nothing else
//   llm.c's     256 numbers of 4 bytes, the first one 20240520 and then tokens of 2 bytes (GPT-2),
//               or 20240801 and tokens of 4 bytes (Llama 3); the third one counts the tokens
// all little-endian. Which tokenizer they are of they do not say. Throws Error where there are
// fewer tokens than a header says, or half of one.
TrainingTokens open_token_bin(const std::filesystem::path& path);

}  // namespace attnres
