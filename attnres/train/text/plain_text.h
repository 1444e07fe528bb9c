// Plain text to train on: read into memory, split, and tokenized, once for the runs of a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "attnres/data/corpus.h"
#include "attnres/data/training_tokens.h"
#include "attnres/text/tokenizer.h"
#include "attnres/train/recipe/recipe.h"
#include "attnres/train/train_observer.h"

namespace attnres {

// What is held out: run_text.h.
enum class SplitRule { by_size, by_file, given, end };

struct PlainText {
  Corpus corpus = {};
  Corpus validation = {};  // of SplitRule::given
  SplitRule rule = SplitRule::by_size;
  // by_size: bytes to hold out at least. Where that may grow, until they fill a context.
  int64_t least_validation_bytes = 1;
  bool may_grow = true;
  bool may_be_short = false;  // no more than half of the text, though that fills no context
};

struct TokenizedText {
  std::shared_ptr<const Tokenizer> tokenizer;
  TrainingTokens train;
  std::vector<int32_t> validation;
  int64_t least_validation_bytes = 0;  // of by_size, in the end
  uint64_t tokens_hash = 0;            // identity of what the model sees
};

// With the tokenizer that is given, or, where that is null, one that is trained as the recipe says.
// Tokens of the same text in `runs` are taken, and made for others there (token_cache.h), but for
// bytes, which are there at once; nowhere if it is empty. Throws Error where the text is too short.
TokenizedText tokenize_plain_text(const PlainText& text, const Recipe& recipe,
                                  std::shared_ptr<const Tokenizer> given,
                                  const std::filesystem::path& runs, TrainObserver& observer);

}  // namespace attnres
