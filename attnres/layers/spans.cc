#include "attnres/layers/spans.h"

#include <ATen/ops/cat.h>

#include <utility>

namespace attnres {

Spans Spans::whole(int64_t count, int64_t tokens) {
  return {std::vector<Span>(static_cast<size_t>(count), Span{.tokens = tokens}), nullptr};
}

Spans::Spans(std::vector<Span> spans, SequencePool* pool, std::vector<FillerRows> fillers)
    : spans_(std::move(spans)), pool_(pool), fillers_(std::move(fillers)) {
  for (size_t i = 0; i < spans_.size(); ++i) {
    if (groups_.empty() || groups_.back().tokens != spans_[i].tokens) {
      groups_.push_back({.first = i, .first_row = tokens_, .tokens = spans_[i].tokens});
    }
    ++groups_.back().count;
    tokens_ += spans_[i].tokens;
  }
}

at::Tensor Spans::batch(const at::Tensor& x, const SpanGroup& group) const {
  const auto count = static_cast<int64_t>(group.count);
  const bool all = count * group.tokens == tokens_;
  const at::Tensor rows = all ? x : x.narrow(0, group.first_row, count * group.tokens);
  return rows.unflatten(0, {count, group.tokens});
}

at::Tensor Spans::by_group(const std::function<at::Tensor(const SpanGroup&)>& compute) const {
  std::vector<at::Tensor> parts;
  for (const SpanGroup& group : groups_) parts.push_back(compute(group).flatten(0, 1));
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

}  // namespace attnres
