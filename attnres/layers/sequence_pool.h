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
// appended again. Snapshots are made between calls, and within the spans of one, which states are
// computed piece by piece for; all else of it is computed as one.
//
// A PageTable knows what lies where, a PageStore keeps it. For one thread at a time; a model may be
// shared by several pools.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "attnres/layers/page_store.h"
#include "attnres/layers/page_table.h"
#include "attnres/layers/spans.h"

namespace attnres {

class SequencePool {
 public:
  // `layers`: what each keeps. `owner` is compared only: the model that they are of.
  SequencePool(std::vector<std::vector<KeptTensor>> layers, const SequencePoolSize& size,
               at::Device device = at::kCPU, const void* owner = nullptr)
      : table_(size), store_(std::move(layers), size, device), owner_(owner) {}
  SequencePool(const SequencePool&) = delete;
  SequencePool& operator=(const SequencePool&) = delete;

  // All of these throw Error, and change nothing, where a sequence does not exist or there is no
  // room.

  // A new sequence without tokens. Its number is never used again.
  int64_t add();
  // Room for more tokens of these sequences, each of which is named once, and the spans of a call
  // that computes them, and makes the snapshots. Lengths change at once: who fails to make that
  // call truncates.
  Spans append(const std::vector<Continuation>& continuations);
  // A new sequence that begins as this one does.
  int64_t fork(int64_t sequence);
  // Takes back the tokens from `length` on. Returns the length that the sequence then has, which is
  // less than asked for where a recurrent state had to go back to a snapshot, or to its beginning:
  // whoever wants the tokens between the two appends them again.
  int64_t truncate(int64_t sequence, int64_t length);
  int64_t length_truncated(int64_t sequence, int64_t length) const;  // what that returns
  // Keeps the recurrent states as they are now, for a later truncate of this sequence or a fork.
  void snapshot(int64_t sequence);
  void free(int64_t sequence) { table_.free(sequence); }

  int64_t length(int64_t sequence) const { return table_.length(sequence); }
  int64_t free_tokens() const { return table_.free_tokens(); }  // of pages that no sequence has
  // How many of these a sequence takes that goes on until it has `length` tokens: whole pages.
  int64_t free_tokens_to_reach(int64_t sequence, int64_t length) const {
    return table_.free_tokens_to_reach(sequence, length);
  }
  int64_t bytes() const { return store_.bytes(); }  // that it has room for, without snapshots
  int64_t snapshot_bytes() const { return table_.snapshot_bytes(); }
  bool has_states() const { return store_.state_bytes() > 0; }
  // Whether it has states, and room for a snapshot of them; else those that are asked for are not
  // made.
  bool takes_snapshots() const {
    return has_states() && table_.has_room_for_snapshot(store_.state_bytes());
  }
  const void* owner() const { return owner_; }
  // Throws Error unless these are the newest tokens of their sequences.
  void require_newest(const Spans& spans) const { table_.require_newest(spans.all()); }
  // What layers read and write.
  PageStore& store() { return store_; }

 private:
  const Snapshot* snapshot_up_to(int64_t sequence, int64_t length) const;

  PageTable table_;
  PageStore store_;
  const void* owner_;
};

}  // namespace attnres
