// Tokenized text to train on: folders that `attnres tokenize --out` has written, and .bin files of
// nanoGPT and llm.c.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "attnres/data/shared_documents.h"
#include "attnres/data/train_batches.h"
#include "attnres/text/tokenizer.h"
#include "attnres/train/recipe/recipe.h"

namespace attnres {

// Whether the paths name tokenized text. Throws UsageError where some do and some name plain text.
bool are_tokens(const std::vector<std::filesystem::path>& paths);

// The first folder of these paths that brings its tokenizer along; nothing where none does.
std::optional<std::filesystem::path> tokenizer_of_tokens(
    const std::vector<std::filesystem::path>& paths);

// Which tokens a tokenizer has.
struct Vocabulary {
  int64_t size = 0;
  int32_t end_of_document = 0;
};

struct RunTokens {
  std::vector<TrainBatches::Source> sources;
  ScoredDocuments validation;  // what is held out; empty where nothing is
  std::string description;     // "2 sources, 1.2G tokens"
  uint64_t hash = 0;           // identity of all of them
};

// Maps the tokens. With `holds_out` the end of each source is held out: the recipe's fraction of
// it, a context at least (of packed documents half of the source, where that is less), and
// kMostHeldOut tokens at most in all. Throws Error where a source has
// too few tokens for that, and UsageError where data.weights does not name all of several sources
// or another one.
inline constexpr int64_t kMostHeldOut = int64_t{1} << 24;
RunTokens open_run_tokens(const std::vector<std::filesystem::path>& paths, const Recipe& recipe,
                          const Vocabulary& vocabulary, bool holds_out);

// Throws Error naming a folder whose tokens are of another tokenizer.
void require_tokens_of(const std::vector<std::filesystem::path>& paths, const Tokenizer& tokenizer);

// To validate on: the tokens, kMostHeldOut at most, in `validation`.
RunTokens read_validation_tokens(const std::vector<std::filesystem::path>& paths,
                                 const Vocabulary& vocabulary);

}  // namespace attnres
