#include "attnres/data/evaluation_batches.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "attnres/support/error.h"

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

}  // namespace

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

int64_t evaluated_tokens(int64_t there, int64_t context, int64_t most) {
  if (most <= 0) return there;
  return std::min(there, std::max<int64_t>(most / context, 1) * context);
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
