// The tokens that a call executes: spans of sequences, which lie one after another, so that what
// every layer is given of them is flat, [T, ...], T tokens of all spans.
//
// In training the spans are whole sequences, of which nothing is kept; Spans::whole makes those of
// one length. While decoding they continue sequences of a pool, in any mixture of prompts' pieces
// and single tokens; SequencePool::append makes them.
//
// What layers need of these tokens' places is made for the first that asks, and kept for the others
// of the call. For one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "attnres/layers/causal_attention.h"
#include "attnres/layers/page_table.h"
#include "attnres/ops/paged_attention/paged_attention.h"
#include "attnres/ops/rotary/rotary.h"

namespace attnres {

class PageStore;
class SequencePool;

// Spans side by side that have as many tokens each, which a layer may compute as one batch; or a
// piece of one that is cut where its sequence's states are to be kept.
struct SpanGroup {
  size_t first = 0, count = 0;  // which spans
  int64_t first_row = 0;        // of the first span's first token
  int64_t tokens = 0;           // of each
  int64_t start = 0;            // tokens of the span before these, where it is cut
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
  PageStore* store() const;                     // of the pool; null without one

  // The rows of a group as a batch: [count, tokens, ...] of x [T, ...], a view.
  at::Tensor batch(const at::Tensor& x, const SpanGroup& group) const;
  // One result [T, ...] of what `compute` makes of every group, [count, tokens, ...] each.
  at::Tensor by_group(const std::function<at::Tensor(const SpanGroup&)>& compute) const;

  // x [T, H, K], turned by the tokens' positions (ops/rotary).
  at::Tensor turned(const at::Tensor& x_THK, const RotaryFrequencies& frequencies) const;
  const CausalMasks& masks() const { return masks_; }

  // What follows is of a pool's sequences.

  // The row of the pool's pages that has each token: [T] int64, on the pool's device.
  const at::Tensor& rows() const;
  // The pages of a span, likewise; undefined where they are one behind the other.
  const at::Tensor& scattered_pages(size_t span) const;
  // Where the states of a group's sequences are: [count], likewise.
  const at::Tensor& slots(const SpanGroup& group) const;
  // What each token sees: all tokens up to itself, or with a window the last `window` of them.
  const std::vector<SeenTokens>& seen(int64_t window) const;

 private:
  void add_pieces(size_t span);
  RotaryTable table_of(const RotaryFrequencies& frequencies, const at::TensorOptions& of_x) const;

  std::vector<Span> spans_;
  std::vector<SpanGroup> groups_;
  int64_t tokens_ = 0;
  SequencePool* pool_;
  std::vector<FillerRows> fillers_;

  CausalMasks masks_;
  mutable std::map<std::pair<RotaryFrequencies, at::ScalarType>, RotaryTable> tables_;
  mutable at::Tensor rows_;
  mutable std::map<size_t, at::Tensor> pages_, slots_;  // by span, by group
  mutable std::map<int64_t, std::vector<SeenTokens>> seen_;
};

}  // namespace attnres
