// Where sequences lie in a pool, in numbers alone: the pages that have their tokens, the slot that
// has the states of each as a whole, and the snapshots that states can go back to. It knows nothing
// of what is kept there (page_store.h).
//
// A page is shared by a sequence and its forks until one of them goes on within it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

namespace attnres {

struct SequencePoolSize {
  int64_t sequences = 1;
  // Any so many sequences of together so many tokens fit.
  int64_t tokens = 0;
  int64_t page_tokens = 64;
  int64_t snapshot_bytes = int64_t{256} << 20;  // of all snapshots; those that save least go first

  // Each sequence's last page may be empty but for one token.
  int64_t pages() const { return tokens / page_tokens + sequences; }
};

// The t-th token of a sequence is row pages[t / page_tokens] * page_tokens + t % page_tokens of
// what is kept of tokens.
using Pages = std::vector<int64_t>;

struct KeptStates;  // of a sequence, as a page store saved them

struct Snapshot {
  int64_t length = 0;
  int64_t bytes = 0;
  std::shared_ptr<KeptStates> states = {};
};
using Snapshots = std::vector<std::shared_ptr<const Snapshot>>;  // the longest last

struct Span {
  int64_t tokens = 0;
  int64_t position = 0;   // of the first, in its sequence
  int64_t sequence = -1;  // of the pool; -1 without one
  // Where the pool has its states, and its tokens up to the last of these.
  int64_t slot = -1;
  std::shared_ptr<const Pages> pages = {};
  std::vector<Snapshot> snapshots = {};  // to be made of its states on the way

  int64_t end() const { return position + tokens; }
};

struct Continuation {
  int64_t sequence = 0;
  int64_t tokens = 0;
  // Lengths that the sequence has within these tokens, ascending, where its states are kept as
  // snapshots on the way; their end is not one of them.
  std::vector<int64_t> snapshots = {};

  void show_to(auto& visitor) { visitor(sequence, tokens, snapshots); }
};

class PageTable {
 public:
  // Throws Error where there is no room for a sequence and a token.
  explicit PageTable(const SequencePoolSize& size);

  // All of these throw Error, and change nothing, where a sequence does not exist or there is no
  // room. SequencePool says more of those that it has too.

  int64_t add();
  int64_t fork(int64_t sequence);
  struct PageCopy {
    int64_t from = 0, to = 0;
  };
  struct Appended {
    std::vector<Span> spans;
    std::vector<PageCopy> copies;  // to be made before anything is written
  };
  Appended append(const std::vector<Continuation>& continuations);
  // Takes back the tokens from `length` on, and snapshots of more.
  void truncate(int64_t sequence, int64_t length);
  // One that is longer than the sequence's others. Drops what exceeds the pool's bound, first what
  // saves the fewest tokens: the last snapshot of a sequence saves all of its tokens, others those
  // since the one before. So a long prompt's thin out, and leave other sequences theirs. They age:
  // what is made or used counts from where the last that was dropped had come to (GreedyDual).
  void add_snapshot(int64_t sequence, const Snapshot& snapshot);
  // One that a sequence goes back to.
  void use_snapshot(const Snapshot& snapshot);
  void free(int64_t sequence);

  int64_t length(int64_t sequence) const { return find(sequence).length; }
  int64_t slot(int64_t sequence) const { return find(sequence).slot; }
  const Snapshots& snapshots(int64_t sequence) const { return find(sequence).snapshots; }
  int64_t free_tokens() const { return static_cast<int64_t>(free_pages_.size()) * page_tokens_; }
  int64_t free_tokens_to_reach(int64_t sequence, int64_t length) const;
  int64_t snapshot_bytes() const;
  bool has_room_for_snapshot(int64_t bytes) const { return bytes <= snapshot_limit_; }
  // Throws Error unless these are the newest tokens of their sequences, which lie where they did.
  void require_newest(const std::vector<Span>& spans) const;

 private:
  struct Sequence {
    int64_t length = 0;
    int64_t slot = 0;
    std::shared_ptr<const Pages> pages = std::make_shared<const Pages>();
    Snapshots snapshots = {};
  };
  struct RankedSnapshot {
    std::shared_ptr<const Snapshot> snapshot;
    int64_t since = 0;  // what `dropped_` was when it was made or used
  };

  Sequence& find(int64_t sequence);
  const Sequence& find(int64_t sequence) const;
  int64_t pages_for(int64_t tokens) const { return (tokens + page_tokens_ - 1) / page_tokens_; }
  bool shares_last_page(const Sequence& sequence) const;
  int64_t needed_pages(const Sequence& sequence, int64_t length) const;
  void take_page(Pages& pages);
  void release_pages(Sequence& sequence, int64_t keep);
  std::map<const Snapshot*, int64_t> tokens_saved() const;
  void drop_snapshots();

  int64_t page_tokens_, snapshot_limit_;
  std::map<int64_t, Sequence> sequences_;
  int64_t next_sequence_ = 0;
  std::set<int64_t> free_pages_, free_slots_;
  std::vector<int64_t> page_uses_;
  std::vector<RankedSnapshot> snapshots_;  // the oldest first
  int64_t dropped_ = 0;                    // what the one that was dropped last counted
};

}  // namespace attnres
