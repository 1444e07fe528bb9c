#include "attnres/layers/sequence_pool.h"

#include <utility>

#include "attnres/support/error.h"

namespace attnres {

int64_t SequencePool::add() {
  const int64_t added = table_.add();
  store_.set_states(table_.slot(added), nullptr);
  return added;
}

Spans SequencePool::append(const std::vector<Continuation>& continuations) {
  PageTable::Appended appended = table_.append(continuations);
  for (const PageTable::PageCopy& page : appended.copies) store_.copy_page(page);
  return {std::move(appended.spans), this};
}

int64_t SequencePool::fork(int64_t sequence) {
  const int64_t forked = table_.fork(sequence);
  store_.copy_states(table_.slot(sequence), table_.slot(forked));
  return forked;
}

int64_t SequencePool::truncate(int64_t sequence, int64_t length) {
  table_.truncate(sequence, length);
  const int64_t slot = table_.slot(sequence);
  if (store_.states_are_at(slot, length)) return length;
  const Snapshot* last = table_.last_snapshot(sequence);
  store_.set_states(slot, last);
  const int64_t left = last != nullptr ? last->length : 0;
  table_.truncate(sequence, left);
  return left;
}

void SequencePool::snapshot(int64_t sequence) {
  const int64_t slot = table_.slot(sequence), length = table_.length(sequence);
  require(store_.states_are_at(slot, length),
          "sequence pool: sequence {} has tokens that were not computed yet; compute or truncate "
          "them before a snapshot",
          sequence);
  const Snapshot* last = table_.last_snapshot(sequence);
  if (store_.state_bytes() == 0 || (last != nullptr && last->length == length)) return;
  table_.add_snapshot(sequence, store_.save_states(slot), store_.state_bytes());
}

}  // namespace attnres
