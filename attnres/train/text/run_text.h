// The text of a run: what it trains on, what it is validated on, and how run.json records that, so
// that a run that goes on, and whoever scores its held-out text, sees the same. Of "data" there:
//   paths, description, bytes   the text, and
//   hash                        its identity, with that of validation text of its own
//   tokens_hash, train_tokens, validation_tokens
//   validation_left_out   of tokenized text: which documents to validate on are left out, because
//                         they are trained on as well (data/shared_documents.h); absent: none
//   split   the rule:
//     by_size   held out by split_by_size, with the recipe's data.validation_fraction and
//               least_validation_bytes
//     given     validation text of its own, with validation_paths, validation_description and
//               validation_hash
//     end       of tokenized text (run_tokens.h): the end of each source
//     (absent)  of runs of earlier versions: split_by_file, duplicates and all
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "attnres/data/corpus.h"
#include "attnres/data/evaluation_batches.h"
#include "attnres/data/train_batches.h"
#include "attnres/support/json.h"
#include "attnres/train/recipe/recipe.h"
#include "attnres/train/run_folder/run_folder.h"
#include "attnres/train/text/run_tokens.h"
#include "attnres/train/train_observer.h"

namespace attnres {

struct TextPaths {
  std::vector<std::filesystem::path> data;        // empty: default_corpus_paths
  std::vector<std::filesystem::path> validation;  // empty: a part of the data is held out
  // Where the runs lie that share tokens of plain text (token_cache.h); empty: nowhere.
  std::filesystem::path runs = {};
};

struct RunText {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<TrainBatches::Source> train;
  EvaluationTokens validation;
  uint64_t tokens_hash = 0;  // RunTokens::hash where the text is tokenized
  Json record;               // run.json's "data"
};

// Reads the text, without duplicates, or maps what is tokenized, and tells the observer about it.
// `recorded` is the run.json of the run that goes on, whose rule then holds, or null. Without a
// tokenizer one is trained on the text, as the recipe says; tokens need theirs. What a new run
// holds out fills a context; a line warns where losses on it mean little. What is validated on is
// not trained on: text is left out of what is trained on, and of tokenized text documents of what
// is validated on. Throws Error where the text is too short for that.
RunText read_run_text(const TextPaths& paths, const Recipe& recipe, const Json& recorded,
                      std::shared_ptr<const Tokenizer> tokenizer, TrainObserver& observer);

// The rows of a run. `tokens` is what it trains on.
TrainBatches batches_of(const std::vector<TrainBatches::Source>& tokens, const Recipe& recipe,
                        const Vocabulary& vocabulary);
Vocabulary vocabulary_of(const Tokenizer& tokenizer);

// The text that a run held out, read again. Throws Error when it is gone or has changed.
EvaluationTokens read_held_out(const RunPaths& run, const Tokenizer& tokenizer);

}  // namespace attnres
