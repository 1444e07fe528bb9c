#include "attnres/data/evaluation_batches.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

constexpr int64_t kNotScored = -100;  // of linear_cross_entropy

Batch empty_batch(int64_t rows, int64_t length) {
  return {at::empty({rows, length}, at::kLong), at::empty({rows, length}, at::kLong)};
}

}  // namespace

std::vector<int32_t> EvaluationTokens::counted() const {
  if (counts.empty()) return ids;
  std::vector<int32_t> counted;
  for (int64_t i = 0; i < std::ssize(ids); ++i) {
    if (counts[i]) counted.push_back(ids[i]);
  }
  return counted;
}

void EvaluationTokens::append(const EvaluationTokens& more) {
  if (!counts.empty() || !more.counts.empty()) {
    counts.resize(ids.size(), true);
    for (int64_t i = 0; i < std::ssize(more.ids); ++i) counts.push_back(more.counts_at(i));
  }
  ids.insert(ids.end(), more.ids.begin(), more.ids.end());
}

EvaluationTokens EvaluationTokens::first(int64_t count) const {
  count = std::min<int64_t>(count, std::ssize(ids));
  EvaluationTokens begin = {{ids.begin(), ids.begin() + count}};
  if (!counts.empty()) begin.counts.assign(counts.begin(), counts.begin() + count);
  return begin;
}

EvaluationTokens read_to_score(const TrainingTokens& tokens, int64_t first, int64_t count,
                               int64_t vocab_size) {
  std::vector<uint32_t> raw(count);
  tokens.read(first, count, vocab_size, raw.data());
  EvaluationTokens read = {std::vector<int32_t>(count)};
  if (tokens.marks_targets()) read.counts.resize(count);
  for (int64_t i = 0; i < count; ++i) {
    read.ids[i] = static_cast<int32_t>(raw[i] & ~kNoTarget);
    if (tokens.marks_targets()) read.counts[i] = (raw[i] & kNoTarget) == 0;
  }
  return read;
}

EvaluationTokens in_begun_windows(std::vector<int32_t> ids, const std::vector<int64_t>& ends,
                                  const std::vector<int32_t>& before, int64_t context) {
  if (before.empty()) return {std::move(ids)};
  require_usage(
      context > std::ssize(before),
      "context: each window begins with {} of the tokenizer's, and {} tokens have no room "
      "for more",
      counted(std::ssize(before), "token"), context);
  EvaluationTokens laid;
  auto end = ends.begin();
  bool begins = true;  // a document
  for (int64_t i = 0; i < std::ssize(ids); ++i) {
    while (begins || std::ssize(laid.ids) % context == 0) {
      laid.ids.insert(laid.ids.end(), before.begin(), before.end());
      laid.counts.resize(laid.ids.size(), false);
      begins = false;
    }
    laid.ids.push_back(ids[i]);
    laid.counts.push_back(true);
    begins = end != ends.end() && *end == i + 1;
    if (begins) ++end;
  }
  return laid;
}

EvaluationBatches::EvaluationBatches(EvaluationTokens tokens, int64_t context, int64_t batch_size)
    : tokens_(std::move(tokens)), context_(context), batch_size_(batch_size) {
  require_usage(context >= 2, "context: an evaluation window needs at least 2 tokens, got {}",
                context);
  require_usage(batch_size >= 1, "batch_size: must be at least 1, got {}", batch_size);
  const int64_t length = std::ssize(tokens_.ids);
  require(length >= 2, "the text has {}, but scoring needs at least 2; give more text",
          counted(length, "token"));
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
    fill_row(batch, b, (window + b) * context_);
  }
  return batch;
}

// From the tokens that begin at `first`, one more than the row has.
void EvaluationBatches::fill_row(Batch& batch, int64_t row, int64_t first) const {
  const int64_t length = batch.inputs_BT.size(1);
  auto* inputs = batch.inputs_BT.mutable_data_ptr<int64_t>() + row * length;
  auto* targets = batch.targets_BT.mutable_data_ptr<int64_t>() + row * length;
  for (int64_t t = 0; t < length; ++t) {
    inputs[t] = tokens_.ids[first + t];
    targets[t] = tokens_.counts_at(first + t + 1) ? tokens_.ids[first + t + 1] : kNotScored;
  }
}

int64_t EvaluationBatches::scored_tokens() const {
  const int64_t all = full_windows_ * (context_ - 1) + std::max<int64_t>(last_window_ - 1, 0);
  if (tokens_.counts.empty()) return all;
  int64_t scored = 0;
  for (int64_t i = 0; i < full_windows_ * context_ + last_window_; ++i) {
    scored += i % context_ != 0 && tokens_.counts[i];
  }
  return scored;
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
