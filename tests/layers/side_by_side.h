// A batch of sequences that are decoded side by side, as many tokens of each at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "attnres/layers/sublayer.h"

namespace attnres::testing {

class SideBySide {
 public:
  SideBySide(std::unique_ptr<SequencePool> pool, int64_t batch) : pool_(std::move(pool)) {
    for (int64_t i = 0; i < batch; ++i) sequences_.push_back(pool_->add());
  }
  // Takes what one layer keeps, or several of a mixer.
  SideBySide(const std::vector<std::vector<KeptTensor>>& layers, int64_t batch, int64_t tokens)
      : SideBySide(std::make_unique<SequencePool>(
                       layers, SequencePoolSize{.sequences = batch, .tokens = batch * tokens}),
                   batch) {}

  // The next so many tokens of each.
  Spans next(int64_t tokens) {
    std::vector<Continuation> more;
    for (const int64_t sequence : sequences_) more.push_back({sequence, tokens});
    return pool_->append(more);
  }
  SequencePool& pool() { return *pool_; }
  int64_t length() const { return pool_->length(sequences_.at(0)); }

 private:
  std::unique_ptr<SequencePool> pool_;
  std::vector<int64_t> sequences_;
};

// A sublayer's output [B, T, D] for inputs [B, T, D] of whole sequences, or of the next tokens of
// those that are decoded.
inline at::Tensor forward(const Sublayer& sublayer, SublayerInput input,
                          SideBySide* decoded = nullptr) {
  const int64_t B = input.x.size(0), T = input.x.size(1);
  for (at::Tensor* x : {&input.x, &input.query, &input.key, &input.value}) {
    if (x->defined()) *x = x->flatten(0, 1);
  }
  const Spans spans = decoded != nullptr ? decoded->next(T) : Spans::whole(B, T);
  return sublayer.forward(input, {std::make_shared<Spans>(spans)}).y.unflatten(0, {B, T});
}

}  // namespace attnres::testing
