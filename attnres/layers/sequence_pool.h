// The sequences that are being decoded, and all that is kept of them: keys and values, latents,
// recurrent states, the inputs of convolutions, whatever a layer or a depth mixing asks for.
//
//   id = pool.add()
//   spans = pool.append({{id, 12}})        // room for 12 more tokens of it
//   model.hidden(ids, spans)               // each layer writes what it keeps of them, and reads
//   pool.truncate(id, 8)                   // as if the last four had never been
//
// What is kept of each token lies in pages, which sequences share: a fork costs no memory until one
// of the two goes on, and then a page. What is kept of a sequence as a whole (recurrent states) is
// overwritten as it goes on: to go back, there must be a snapshot, and the tokens since then are
// appended again.
//
// For one thread at a time; a model may be shared by several pools.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "attnres/layers/spans.h"

namespace attnres {

// A tensor that a layer keeps while decoding.
struct KeptTensor {
  enum class Of { token, sequence };

  std::string name = {};  // "keys"
  Of of = Of::token;
  std::vector<int64_t> sizes = {};  // of one token, or of one sequence
  at::ScalarType dtype = at::kFloat;

  int64_t bytes() const;  // of one token, or of one sequence
};

struct SequencePoolSize {
  int64_t sequences = 1;
  // Any so many sequences of together so many tokens fit.
  int64_t tokens = 0;
  int64_t page_tokens = 64;
  int64_t snapshot_bytes = int64_t{256} << 20;  // of all snapshots; the oldest go first
};

// What a pool of this size has room for, in bytes, without snapshots. `layers`: what each keeps.
int64_t pool_bytes(const std::vector<std::vector<KeptTensor>>& layers,
                   const SequencePoolSize& size);

struct Continuation {
  int64_t sequence = 0;
  int64_t tokens = 0;
};

class SequencePool {
 public:
  // `layers`: what each keeps. `owner` is compared only: the model that they are of.
  SequencePool(std::vector<std::vector<KeptTensor>> layers, const SequencePoolSize& size,
               at::Device device = at::kCPU, const void* owner = nullptr);
  SequencePool(const SequencePool&) = delete;
  SequencePool& operator=(const SequencePool&) = delete;

  // All of these throw Error, and change nothing, where a sequence does not exist or there is no
  // room.

  // A new sequence without tokens. Its number is never used again.
  int64_t add();
  // Room for more tokens of these sequences, each of which is named once, and the spans of a call
  // that computes them. Lengths change at once: who fails to make that call truncates.
  Spans append(const std::vector<Continuation>& continuations);
  // A new sequence that begins as this one does.
  int64_t fork(int64_t sequence);
  // Takes back the tokens from `length` on. Returns the length that the sequence then has, which is
  // less than asked for where a recurrent state had to go back to a snapshot, or to its beginning:
  // whoever wants the tokens between the two appends them again.
  int64_t truncate(int64_t sequence, int64_t length);
  // Keeps the recurrent states as they are now, for a later truncate of this sequence or a fork.
  void snapshot(int64_t sequence);
  void free(int64_t sequence);

  int64_t length(int64_t sequence) const;
  int64_t free_tokens() const;  // of pages that no sequence has
  // How many of these a sequence takes that goes on until it has `length` tokens: whole pages.
  int64_t free_tokens_to_reach(int64_t sequence, int64_t length) const;
  int64_t bytes() const;  // that the pool has room for, without snapshots
  int64_t snapshot_bytes() const;
  const void* owner() const { return owner_; }
  // Throws Error unless these are the newest tokens of their sequences.
  void require_newest(const Spans& spans) const;

  // What layers read and write of the sequences of a call's spans; `which` of the layer's tensors.

  // Keeps the call's tokens, rows [T, sizes..].
  void write_tokens(int layer, size_t which, const Spans& spans, const at::Tensor& rows);
  // All tokens of a span's sequence up to its last: [end, sizes..]. Without a copy where they lie
  // in one piece.
  at::Tensor read_tokens(int layer, size_t which, const Span& span) const;
  // Where they lie, for who reads them there: the t-th token of a sequence is row
  // pages[t / page_tokens] * page_tokens + t % page_tokens of [rows, sizes..].
  const at::Tensor& token_rows(int layer, size_t which) const { return store(layer, which).values; }
  const std::vector<int64_t>& pages(int64_t sequence) const { return find(sequence).pages; }
  int64_t page_tokens() const { return page_tokens_; }
  // What is kept of the group's sequences: [count, sizes..], zeros before their first token; to be
  // read, and before write_states. Throws Error unless it is that after the tokens before the
  // spans.
  at::Tensor read_states(int layer, size_t which, const Spans& spans, const SpanGroup& group) const;
  // Where these lie, one after another in the group's order: for who reads them there and leaves
  // there what they are after the spans' tokens. Throws as read_states.
  std::vector<void*> change_states(int layer, size_t which, const Spans& spans,
                                   const SpanGroup& group);
  // The same after the spans' tokens.
  void write_states(int layer, size_t which, const Spans& spans, const SpanGroup& group,
                    const at::Tensor& states);

 private:
  // Of one tensor that is kept.
  struct Store {
    KeptTensor kept;
    at::Tensor values;               // [pages x page_tokens, sizes..] or [slots, sizes..]
    std::vector<int64_t> positions;  // of each slot's state: the tokens that it has seen
  };
  struct Snapshot {
    int64_t length = 0;
    std::vector<at::Tensor> states;  // in the order of for_each_state
    int64_t bytes = 0;
  };
  struct Sequence {
    int64_t length = 0;
    int64_t slot = 0;
    std::vector<int64_t> pages;
    std::vector<std::shared_ptr<const Snapshot>> snapshots;  // the longest last
  };

  Sequence& find(int64_t sequence);
  const Sequence& find(int64_t sequence) const;
  int64_t pages_for(int64_t tokens) const { return (tokens + page_tokens_ - 1) / page_tokens_; }
  bool shares_last_page(const Sequence& sequence) const;
  int64_t take_page(int64_t after);
  void release_pages(Sequence& sequence, size_t keep);
  void copy_page(int64_t from, int64_t to);
  bool states_are_at(const Sequence& sequence, int64_t length) const;
  std::vector<int64_t> slots_of(const Store& kept, const Spans& spans,
                                const SpanGroup& group) const;
  void set_states(const Sequence& sequence, const Snapshot* snapshot);
  void drop_oldest_snapshots();
  Store& store(int layer, size_t which) { return layers_.at(layer).at(which); }
  const Store& store(int layer, size_t which) const { return layers_.at(layer).at(which); }
  template <class F>
  void for_each_state(F f);

  int64_t page_tokens_, snapshot_limit_;
  const void* owner_;
  std::vector<std::vector<Store>> layers_;
  std::map<int64_t, Sequence> sequences_;
  int64_t next_sequence_ = 0;
  std::set<int64_t> free_pages_, free_slots_;
  std::vector<int64_t> page_uses_;
  std::vector<std::shared_ptr<const Snapshot>> snapshots_;  // the oldest first
};

}  // namespace attnres
