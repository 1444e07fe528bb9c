#include "attnres/data/train_batches.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>

#include "attnres/data/permutation.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/random.h"

namespace attnres {
namespace {

constexpr int64_t kNotCounted = -100;  // of linear_cross_entropy
// Rows of a step that are told apart where they are drawn.
constexpr int64_t kDrawsAStep = int64_t{1} << 24;

std::vector<double> weights_of(const std::vector<TrainBatches::Source>& sources) {
  std::vector<double> weights;
  for (const TrainBatches::Source& source : sources) weights.push_back(source.weight);
  return weights;
}

// How many tokens of a row belong together, by the documents that begin in it. A document's first
// input is the token that ends the one before.
void add_sequences(const TrainingTokens& tokens, const TokenRow& row, int32_t end_of_document,
                   int64_t context, std::vector<int64_t>& sequences) {
  int64_t begin = 0;
  const auto add = [&](int64_t end) {
    if (end > begin) sequences.push_back(end - begin);
    begin = std::max(begin, end);
  };
  for (const int64_t end : tokens.ends(row.first, row.count, end_of_document)) {
    add(end - 1 - row.first);
  }
  add(row.count);
  add(context);
}

std::vector<PackedRows> rows_of_all(const std::vector<TrainBatches::Source>& sources,
                                    const TrainBatchSettings& settings) {
  require_usage(settings.rows >= 1, "batch_size: must be at least 1, got {}", settings.rows);
  std::vector<PackedRows> rows;
  for (const TrainBatches::Source& source : sources) {
    require_usage(settings.order == RowOrder::epochs || settings.packing == Packing::documents ||
                      !source.tokens.marks_targets(),
                  "data.order: rows that are drawn of conversations may hold no answer; set "
                  "data.order=epochs, or data.packing=documents");
    rows.emplace_back(source.tokens, settings.context, settings.packing, settings.end_of_document);
  }
  return rows;
}

}  // namespace

std::string name_of(RowOrder order) {
  return order == RowOrder::epochs ? "epochs" : "drawn";
}

RowOrder row_order_named(const std::string& name) {
  for (const RowOrder order : {RowOrder::epochs, RowOrder::drawn}) {
    if (name == name_of(order)) return order;
  }
  fail_usage("data.order: there is no {}", one_line(name));
}

TrainBatches::TrainBatches(std::vector<Source> sources, const TrainBatchSettings& settings)
    : sources_(std::move(sources)),
      settings_(settings),
      rows_(rows_of_all(sources_, settings_)),
      mixture_(weights_of(sources_)) {}

TokenRow TrainBatches::next_row(Mixture::Turn turn) const {
  const PackedRows& rows = rows_[turn.source];
  const TrainingTokens& tokens = sources_[turn.source].tokens;
  const uint64_t seed = RandomStream(settings_.seed, "sources").bits(turn.source);
  // A whole epoch is among these.
  for (const uint64_t end = turn.row + 2 * rows.size(); turn.row < end; ++turn.row) {
    const uint64_t epoch = turn.row / rows.size();
    const Permutation order(rows.size(), seed, epoch);
    const uint64_t start = RandomStream(seed, "starts").below(rows.starts(), epoch);
    const TokenRow row =
        rows.row(static_cast<int64_t>(order(turn.row % rows.size())), static_cast<int64_t>(start));
    if (tokens.has_target(row.first + 1, row.count)) return row;
  }
  fail("{}: its tokens have changed: none counts any more", tokens.pieces().front().name);
}

TrainBatches::Place TrainBatches::place(int64_t step, int64_t row) const {
  const Mixture::Turn turn = mixture_.turn((step - 1) * settings_.rows + row);
  if (settings_.order == RowOrder::epochs) return {turn.source, next_row(turn)};
  const RandomStream draws(settings_.seed, "batches");
  return {turn.source, rows_[turn.source].drawn(draws, step * kDrawsAStep + row)};
}

Batch TrainBatches::batch(int64_t step, int64_t part, int64_t count) const {
  require(step >= 1 && part >= 0 && count >= 1 && (part + 1) * count <= settings_.rows,
          "batch: part {} of {} rows in step {}: a step, counted from 1, has {} rows", part, count,
          step, settings_.rows);
  const int64_t T = settings_.context;
  Batch batch = {at::full({count, T}, settings_.end_of_document, at::kLong),
                 at::full({count, T}, kNotCounted, at::kLong)};
  auto* inputs = batch.inputs_BT.mutable_data_ptr<int64_t>();
  auto* targets = batch.targets_BT.mutable_data_ptr<int64_t>();
  std::vector<uint32_t> tokens(T + 1);
  for (int64_t b = 0; b < count; ++b) {
    const auto& [source, at] = place(step, part * count + b);
    sources_[source].tokens.read(at.first, at.count + 1, settings_.vocab_size, tokens.data());
    for (int64_t t = 0; t < at.count; ++t) {
      inputs[b * T + t] = tokens[t] & ~kNoTarget;
      if ((tokens[t + 1] & kNoTarget) == 0) targets[b * T + t] = tokens[t + 1];
    }
    batch.filled.push_back(at.count);
    if (settings_.mask_documents) {
      add_sequences(sources_[source].tokens, at, settings_.end_of_document, T, batch.sequences);
    }
  }
  return batch;
}

}  // namespace attnres
