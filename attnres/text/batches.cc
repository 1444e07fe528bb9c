#include "attnres/text/batches.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "attnres/support/error.h"
#include "attnres/support/random.h"

namespace attnres {
namespace {

Batch empty_batch(int64_t rows, int64_t length) {
  return {at::empty({rows, length}, at::kLong), at::empty({rows, length}, at::kLong)};
}

// Fills a row from the length + 1 tokens that begin at `first`.
void fill_row(Batch& batch, int64_t row, const int32_t* first) {
  const int64_t length = batch.inputs_BT.size(1);
  std::copy_n(first, length, batch.inputs_BT.mutable_data_ptr<int64_t>() + row * length);
  std::copy_n(first + 1, length, batch.targets_BT.mutable_data_ptr<int64_t>() + row * length);
}

// Rows of a step that can be told apart by the counter (step, row).
constexpr int64_t kMostRows = int64_t{1} << 24;

}  // namespace

TrainBatches::TrainBatches(const std::vector<int32_t>& tokens, int64_t context, uint64_t seed)
    : tokens_(tokens), context_(context), seed_(seed) {
  require_usage(context >= 1, "context: must be at least 1 token, got {}", context);
  const auto length = static_cast<int64_t>(tokens.size());
  require(length > context,
          "training text: {} tokens, but a context of {} needs at least {}; give more text, or a "
          "shorter context",
          length, context, context + 1);
}

Batch TrainBatches::batch(int64_t step, int64_t micro_step, int64_t batch_size) const {
  require_usage(batch_size >= 1, "batch_size: must be at least 1, got {}", batch_size);
  require(step >= 0 && micro_step >= 0 && micro_step < kMostRows / batch_size,
          "batch: step {}, micro-step {} of {} rows: a step has at most {} rows", step, micro_step,
          batch_size, kMostRows);
  const RandomStream random(seed_, "batches");
  const uint64_t starts = tokens_.size() - context_;
  Batch batch = empty_batch(batch_size, context_);
  for (int64_t b = 0; b < batch_size; ++b) {
    const uint64_t row = micro_step * batch_size + b;
    fill_row(batch, b, tokens_.data() + random.below(starts, step * kMostRows + row));
  }
  return batch;
}

EvaluationBatches::EvaluationBatches(const std::vector<int32_t>& tokens, int64_t context,
                                     int64_t batch_size)
    : tokens_(tokens), context_(context), batch_size_(batch_size) {
  require_usage(context >= 2, "context: an evaluation window needs at least 2 tokens, got {}",
                context);
  require_usage(batch_size >= 1, "batch_size: must be at least 1, got {}", batch_size);
  const auto length = static_cast<int64_t>(tokens.size());
  require(length >= 2, "validation text: {} tokens, but scoring needs at least 2; give more text",
          length);
  full_windows_ = length / context;
  last_window_ = length % context >= 2 ? length % context : 0;
}

int64_t EvaluationBatches::size() const {
  return (full_windows_ + batch_size_ - 1) / batch_size_ + (last_window_ > 0 ? 1 : 0);
}

Batch EvaluationBatches::operator[](int64_t i) const {
  require(i >= 0 && i < size(), "evaluation batch {}: there are {}", i, size());
  const int64_t first = i * batch_size_;
  const bool is_short = first >= full_windows_;
  const int64_t rows = is_short ? 1 : std::min(batch_size_, full_windows_ - first);
  Batch batch = empty_batch(rows, (is_short ? last_window_ : context_) - 1);
  const int64_t window = is_short ? full_windows_ : first;
  for (int64_t b = 0; b < rows; ++b) {
    fill_row(batch, b, tokens_.data() + (window + b) * context_);
  }
  return batch;
}

int64_t EvaluationBatches::scored_tokens() const {
  return full_windows_ * (context_ - 1) + std::max<int64_t>(last_window_ - 1, 0);
}

double unigram_entropy(const std::vector<int32_t>& tokens, int64_t vocab_size) {
  require(!tokens.empty(), "unigram entropy: the stream has no tokens");
  std::vector<int64_t> counts(vocab_size);
  for (const int32_t token : tokens) {
    require(token >= 0 && token < vocab_size,
            "unigram entropy: token {} is outside the vocabulary "
            "of {}",
            token, vocab_size);
    ++counts[token];
  }
  double entropy = 0;
  for (const int64_t count : counts) {
    if (count == 0) continue;
    const double p = static_cast<double>(count) / static_cast<double>(tokens.size());
    entropy -= p * std::log(p);
  }
  return entropy;
}

}  // namespace attnres
