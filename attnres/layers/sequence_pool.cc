#include "attnres/layers/sequence_pool.h"

#include <algorithm>
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
  if (!takes_snapshots()) return {std::move(appended.spans), this};
  for (const Continuation& more : continuations) {
    for (const int64_t length : more.snapshots) {
      table_.add_snapshot(more.sequence, {length, store_.state_bytes(), store_.make_states()});
    }
  }
  // Those that there was room for.
  for (Span& span : appended.spans) {
    for (const auto& snapshot : table_.snapshots(span.sequence)) {
      if (snapshot->length > span.position) span.snapshots.push_back(*snapshot);
    }
  }
  return {std::move(appended.spans), this};
}

int64_t SequencePool::fork(int64_t sequence) {
  const int64_t forked = table_.fork(sequence);
  store_.copy_states(table_.slot(sequence), table_.slot(forked));
  return forked;
}

// The longest one that is not longer, and was made; null where there is none.
const Snapshot* SequencePool::snapshot_up_to(int64_t sequence, int64_t length) const {
  const Snapshots& all = table_.snapshots(sequence);
  const auto found = std::find_if(all.rbegin(), all.rend(), [&](const auto& snapshot) {
    return snapshot->length <= length && store_.has_all(*snapshot->states);
  });
  return found != all.rend() ? found->get() : nullptr;
}

int64_t SequencePool::length_truncated(int64_t sequence, int64_t length) const {
  if (store_.states_are_at(table_.slot(sequence), length)) return length;
  const Snapshot* last = snapshot_up_to(sequence, length);
  return last != nullptr ? last->length : 0;
}

int64_t SequencePool::truncate(int64_t sequence, int64_t length) {
  table_.truncate(sequence, length);
  const int64_t slot = table_.slot(sequence);
  if (store_.states_are_at(slot, length)) return length;
  const Snapshot* last = snapshot_up_to(sequence, length);
  store_.set_states(slot, last);
  if (last != nullptr) table_.use_snapshot(*last);
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
  if (!takes_snapshots()) return;
  const Snapshot* last = snapshot_up_to(sequence, length);
  if (last != nullptr && last->length == length) return;
  const std::shared_ptr<KeptStates> states = store_.make_states();
  table_.add_snapshot(sequence, {length, store_.state_bytes(), states});
  // Unless there was no room.
  if (states.use_count() > 1) store_.save_states(slot, *states);
}

}  // namespace attnres
