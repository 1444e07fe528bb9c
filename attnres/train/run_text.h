// The text of a run: what it trains on, what it is validated on, and how run.json records that, so
// that a run that goes on, and whoever scores its held-out text, sees the same. Of "data" there:
//   paths, description, bytes   the text, and
//   hash                        its identity, with that of validation text of its own
//   tokens_hash, train_tokens, validation_tokens
//   split   the rule:
//     by_size   held out by split_by_size, with the recipe's data.validation_fraction and
//               least_validation_bytes
//     given     validation text of its own, with validation_paths, validation_description and
//               validation_hash
//     (absent)  of runs of earlier versions: split_by_file, duplicates and all
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "attnres/support/json.h"
#include "attnres/text/corpus.h"
#include "attnres/train/recipe.h"
#include "attnres/train/run_folder.h"
#include "attnres/train/train_observer.h"

namespace attnres {

struct TextPaths {
  std::vector<std::filesystem::path> data;        // empty: default_corpus_paths
  std::vector<std::filesystem::path> validation;  // empty: a part of the data is held out
};

struct RunText {
  std::unique_ptr<Tokenizer> tokenizer;
  Split split;
  Json record;  // run.json's "data"
};

using TokenizerFor =
    std::function<std::unique_ptr<Tokenizer>(const std::vector<Passage>& training_text)>;

// Reads the text, without duplicates, and tells the observer about it. `recorded` is the run.json
// of the run that goes on, whose rule then holds, or null. What a new run holds out fills a
// context; a line warns where losses on it mean little. Throws Error where the text is too short
// for that.
RunText read_run_text(const TextPaths& paths, const Recipe& recipe, const Json& recorded,
                      const TokenizerFor& tokenizer_for, TrainObserver& observer);

// The text that a run held out, read again. Throws Error when it is gone or has changed.
TokenStream read_held_out(const RunPaths& run, const Tokenizer& tokenizer);

}  // namespace attnres
