// What a pool keeps of its sequences: the tensors of every layer. Which pages and slots are whose,
// a PageTable knows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attnres/layers/page_table.h"
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

// What a pool of this size has room for, in bytes, without snapshots. `layers`: what each keeps.
int64_t pool_bytes(const std::vector<std::vector<KeptTensor>>& layers,
                   const SequencePoolSize& size);

class PageStore {
 public:
  PageStore(std::vector<std::vector<KeptTensor>> layers, const SequencePoolSize& size,
            at::Device device);

  int64_t page_tokens() const { return page_tokens_; }
  at::Device device() const { return device_; }
  int64_t bytes() const;

  // What layers read and write of the sequences of a call's spans; `which` of the layer's tensors.

  // Keeps the call's tokens: rows [T, sizes..], or parts of each row that follow one another in it.
  // On the CPU every number goes straight to its place, however far apart rows lie.
  void write_tokens(int layer, size_t which, const Spans& spans, at::TensorList parts);
  // All tokens of the i-th span's sequence up to its last: [end, sizes..]. Without a copy where
  // they lie in one piece.
  at::Tensor read_tokens(int layer, size_t which, const Spans& spans, size_t i) const;
  // Where they lie, for who reads them there: [rows, sizes..], of which `Pages` are.
  const at::Tensor& token_rows(int layer, size_t which) const { return store(layer, which).values; }
  // What is kept of the group's sequences: [count, sizes..], zeros before their first token; to be
  // read, and before write_states. A snapshot of where the group begins is made of it. Throws Error
  // unless it is that after the tokens before the group's.
  at::Tensor read_states(int layer, size_t which, const Spans& spans, const SpanGroup& group) const;
  // Where these lie, one after another in the group's order: for who reads them there and leaves
  // there what they are after the group's tokens. As read_states.
  std::vector<void*> change_states(int layer, size_t which, const Spans& spans,
                                   const SpanGroup& group);
  // What they are after the group's tokens.
  void write_states(int layer, size_t which, const Spans& spans, const SpanGroup& group,
                    const at::Tensor& states);

  // What follows from changes of the table.

  void copy_page(const PageTable::PageCopy& page);
  void copy_states(int64_t from_slot, int64_t to_slot);
  // For a snapshot: none yet, as they are now, and whether all are there.
  std::shared_ptr<KeptStates> make_states() const;
  void save_states(int64_t slot, KeptStates& states) const;
  bool has_all(const KeptStates& states) const;
  // To those of a snapshot, or without one to their beginning.
  void set_states(int64_t slot, const Snapshot* snapshot);
  int64_t state_bytes() const;  // of a sequence
  // Whether all layers' states have seen so many tokens.
  bool states_are_at(int64_t slot, int64_t length) const;

 private:
  // One tensor that is kept, of all pages or slots.
  struct Store {
    KeptTensor kept;
    at::Tensor values;               // [pages x page_tokens, sizes..] or [slots, sizes..]
    std::vector<int64_t> positions;  // of each slot's state: the tokens that it has seen
    size_t state = 0;                // which of a snapshot's it is
  };

  void begin(const Store& store, const Spans& spans, const SpanGroup& group) const;
  Store& store(int layer, size_t which) { return layers_.at(layer).at(which); }
  const Store& store(int layer, size_t which) const { return layers_.at(layer).at(which); }

  int64_t page_tokens_;
  at::Device device_;
  size_t states_ = 0;  // tensors of a snapshot
  std::vector<std::vector<Store>> layers_;
};

}  // namespace attnres
