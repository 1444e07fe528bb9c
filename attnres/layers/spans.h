// The tokens that a call executes: spans of sequences, which lie one after another, so that what
// every layer is given of them is flat, [T, ...], T tokens of all spans.
//
// In training the spans are whole sequences, of which nothing is kept; Spans::whole makes those of
// one length. While decoding they continue sequences of a pool, in any mixture of prompts' pieces
// and single tokens; SequencePool::append makes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace attnres {

class SequencePool;

struct Span {
  int64_t tokens = 0;
  int64_t position = 0;   // of the first, in its sequence
  int64_t sequence = -1;  // of the pool; -1 without one

  int64_t end() const { return position + tokens; }
};

// Spans side by side that have as many tokens each, which a layer may compute as one batch.
struct SpanGroup {
  size_t first = 0, count = 0;  // which spans
  int64_t first_row = 0;        // of the first span's first token
  int64_t tokens = 0;           // of each
};

// Rows of a call that only fill it up, such as what is left of a row of packed documents.
struct FillerRows {
  int64_t first = 0, count = 0;
};

class Spans {
 public:
  // `count` whole sequences, `tokens` of each.
  static Spans whole(int64_t count, int64_t tokens);
  // `fillers`: rows, among those of these spans, that are computed like all others, but stand for
  // no text: what counts tokens or chooses between them leaves them out.
  Spans(std::vector<Span> spans, SequencePool* pool, std::vector<FillerRows> fillers = {});

  const std::vector<Span>& all() const { return spans_; }
  const std::vector<SpanGroup>& groups() const { return groups_; }
  const std::vector<FillerRows>& fillers() const { return fillers_; }
  int64_t tokens() const { return tokens_; }    // T
  SequencePool* pool() const { return pool_; }  // null: nothing is kept; not owned

  // The rows of a group as a batch: [count, tokens, ...] of x [T, ...], a view.
  at::Tensor batch(const at::Tensor& x, const SpanGroup& group) const;
  // One result [T, ...] of what `compute` makes of every group, [count, tokens, ...] each.
  at::Tensor by_group(const std::function<at::Tensor(const SpanGroup&)>& compute) const;

 private:
  std::vector<Span> spans_;
  std::vector<SpanGroup> groups_;
  int64_t tokens_ = 0;
  SequencePool* pool_;
  std::vector<FillerRows> fillers_;
};

}  // namespace attnres
