#include "attnres/train/run/divergence.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/nonzero.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/json.h"
#include "attnres/support/program.h"
#include "attnres/support/shell.h"
#include "attnres/text/utf8.h"
#include "attnres/train/run_folder/run_folder.h"

namespace attnres {
namespace {

constexpr int64_t kShownTokens = 16;  // of a document

std::string beginning_of_document(const TrainingTokens& tokens, int64_t begin,
                                  const Tokenizer& tokenizer) {
  const std::vector<int32_t> ids =
      tokens.read(begin, std::min(kShownTokens, tokens.size() - begin), tokenizer.vocab_size());
  return one_line(replace_invalid_utf8(tokenizer.decode(ids)));
}

// "row 4, tokens 1200 to 1455 of the text, of document 17, which begins .."
std::string describe(const BrokenRow& broken, const TrainJob& job, const RunText& text,
                     int64_t step) {
  const Vocabulary vocabulary = vocabulary_of(*text.tokenizer);
  const TrainBatches::Place place =
      batches_of(text.train, job.recipe, vocabulary).place(step, broken.row);
  const TrainingTokens& tokens = text.train[place.source].tokens;
  // A row's first input may be the token that ended the document before, and what it ends with is a
  // target alone.
  const int64_t first = place.row.first, last = first + place.row.count;
  const auto documents_before = [&](int64_t at) {
    return tokens.ends(0, at, vocabulary.end_of_document);
  };
  const std::vector<int64_t> before =
      documents_before(broken.token < 0 ? first + 1 : first + broken.token + 1);
  const int64_t begin = before.empty() ? 0 : before.back();
  const auto of_first = std::ssize(before) + 1;
  const auto of_last = broken.token < 0 ? std::ssize(documents_before(last)) + 1 : of_first;
  const std::string excerpt = beginning_of_document(tokens, begin, *text.tokenizer);
  const std::string& name = tokens.pieces().front().name;
  return fmt::format(
      "row {}, tokens {} to {} of {}, of {}, which begins \"{}\"", broken.row + 1, first, last,
      tokens.pieces().size() == 1 ? name : std::filesystem::path(name).parent_path().string(),
      of_first == of_last ? fmt::format("document {}", of_first)
                          : fmt::format("documents {} to {}", of_first, of_last),
      excerpt);
}

// How to go on from a checkpoint, with settings that are not the run's.
std::string command_to_go_on(const std::filesystem::path& last, const std::string& setting) {
  return fmt::format("{} train --from {} --set {} --out NEW", program(), for_shell(last.string()),
                     setting);
}

void note_divergence(const RunPaths& run, int64_t step, const std::string& message) {
  try {
    Json record = read_run_json(run);
    record["diverged"] = {{"step", step}, {"error", message}};
    write_file(run.run_json(), record.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } catch (const Error&) {
    // A full disk does not keep the message itself from being seen.
  }
}

}  // namespace

BrokenRows find_broken_rows(const Transformer& model, Optimizer& optimizer,
                            const TrainBatches& batches, const TrainConfig& config, int64_t step) {
  BrokenRows broken;
  double sum = 0, targets = 0;  // of all other rows
  for (int64_t row = 0; row < config.batch_size; ++row) {
    const Batch batch = batches.batch(step, row, 1);
    const LossSum loss = model.loss_sum(batch, {.recompute = config.recompute});
    if (loss.sum.requires_grad()) loss.sum.backward();
    const double value = loss.sum.item<double>();
    const bool is_finite = std::isfinite(value) && std::isfinite(optimizer.gradient_norm());
    optimizer.clear_gradients();
    if (is_finite) {
      sum += value;
      targets += static_cast<double>(loss.count);
      continue;
    }
    const at::Tensor places = model.log_probabilities(batch.inputs_BT, batch.targets_BT)
                                  .flatten()
                                  .isfinite()
                                  .logical_not()
                                  .nonzero();
    broken.rows.push_back({row, places.numel() > 0 ? places[0].item<int64_t>() : -1});
  }
  if (targets > 0) broken.loss_of_others = sum / targets;
  return broken;
}

void fail_diverged(const TrainJob& job, const RunText& text, int64_t step, const Diverged& why) {
  const TrainConfig& config = job.recipe.train;
  const std::filesystem::path last = RunPaths{job.out}.last();
  const bool is_saved = path_exists(last);
  std::string message = fmt::format(
      "step {}: {}; training stopped, {}. ", step, why.what(),
      is_saved ? last.string() + " is the last good checkpoint" : "there is no earlier checkpoint");
  // Weights that are far from any use break rows as well.
  const double useless = 2 * std::log(static_cast<double>(text.tokenizer->vocab_size()));
  const std::vector<BrokenRow>& rows = why.broken.rows;
  const bool is_of_data =
      !rows.empty() && std::ssize(rows) < config.batch_size && why.broken.loss_of_others < useless;
  if (is_of_data) {
    message += fmt::format(
        "Of the step's {} {} alone {} not finite: {}. --resume meets the same rows again: take "
        "this out of the data, or try a lower train.learning_rate",
        counted(config.batch_size, "row"), rows.size(), rows.size() == 1 ? "is" : "are",
        describe(rows.front(), job, text, step));
  } else {
    message +=
        "--resume meets the same step again: try a lower train.learning_rate or a longer "
        "train.warmup";
  }
  const std::string setting =
      is_of_data ? fmt::format("train.seed={}", config.seed + 1)
                 : fmt::format("train.learning_rate={:.2g}", config.learning_rate / 2);
  message += is_saved ? fmt::format(", in a new run that may begin with these weights:\n  {}{}",
                                    command_to_go_on(last, setting),
                                    is_of_data ? " --data WITHOUT_IT" : "")
                      : ", in a new run";
  note_divergence(RunPaths{job.out}, step, message);
  throw Diverged(message);
}

}  // namespace attnres
