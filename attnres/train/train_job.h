// What there is to train.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "attnres/pretrained/model_directory.h"
#include "attnres/text/tokenizer.h"
#include "attnres/train/recipe/recipe.h"

namespace attnres {

struct TrainJob {
  Recipe recipe;
  // Text, or tokenized text (run_tokens.h). Empty: the compiler's headers (default_corpus_paths),
  // which a run that begins with a model's weights does not take.
  std::vector<std::filesystem::path> data;
  std::vector<std::filesystem::path> validation = {};  // empty: of the data (see run_text.h)
  std::filesystem::path out;                           // the run folder (see run_folder.h)
  // A model whose weights and tokenizer a new run begins with; null: with neither. The recipe must
  // describe that model; how it is trained is free. Moments and steps start anew.
  std::shared_ptr<const ModelDirectory> from = {};
  // A folder with the files of the tokenizer that a new run takes, which the recipe must describe.
  // Empty: that of `from`, or of tokenized text; of plain text one is trained. A model without a
  // tokenizer that is read here is trained on token ids (text/ids.h).
  std::filesystem::path tokenizer = {};
  std::shared_ptr<const Tokenizer> loaded = {};  // that tokenizer, where it was loaded before
  bool resume = false;
  // How often it may go on from one checkpoint, where it is begun again by itself (restarts.h).
  std::optional<int64_t> restarts = {};
  // A file for a Chrome trace of the first steps: the operations of one process, or what several
  // do; empty: none.
  std::filesystem::path trace = {};
  bool force = false;  // begin even where memory or disk look too small (check_resources)
};

}  // namespace attnres
