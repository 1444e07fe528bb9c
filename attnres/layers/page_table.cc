#include "attnres/layers/page_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "attnres/support/error.h"

namespace attnres {

PageTable::PageTable(const SequencePoolSize& size)
    : page_tokens_(size.page_tokens), snapshot_limit_(size.snapshot_bytes) {
  require(size.sequences >= 1 && size.tokens >= 1 && size.page_tokens >= 1,
          "sequence pool: expected room for one sequence and one token or more, in pages of one or "
          "more, got {} sequences of together {} tokens in pages of {}",
          size.sequences, size.tokens, size.page_tokens);
  for (int64_t page = 0; page < size.pages(); ++page) free_pages_.insert(page);
  for (int64_t slot = 0; slot < size.sequences; ++slot) free_slots_.insert(slot);
  page_uses_.resize(size.pages());
}

const PageTable::Sequence& PageTable::find(int64_t sequence) const {
  const auto found = sequences_.find(sequence);
  require(found != sequences_.end(), "sequence pool: there is no sequence {}", sequence);
  return found->second;
}

PageTable::Sequence& PageTable::find(int64_t sequence) {
  return const_cast<Sequence&>(std::as_const(*this).find(sequence));
}

int64_t PageTable::add() {
  require(!free_slots_.empty(),
          "sequence pool: it has room for {} sequences, all in use; free one, or make it larger",
          sequences_.size());
  sequences_[next_sequence_].slot = *free_slots_.begin();
  free_slots_.erase(free_slots_.begin());
  return next_sequence_++;
}

int64_t PageTable::fork(int64_t sequence) {
  const Sequence& from = find(sequence);
  const int64_t forked = add();
  Sequence& to = find(forked);
  to.length = from.length;
  to.pages = from.pages;
  to.snapshots = from.snapshots;
  for (const int64_t page : *to.pages) ++page_uses_[page];
  return forked;
}

bool PageTable::shares_last_page(const Sequence& sequence) const {
  return sequence.length % page_tokens_ != 0 && page_uses_[sequence.pages->back()] > 1;
}

int64_t PageTable::needed_pages(const Sequence& sequence, int64_t length) const {
  if (length <= sequence.length) return 0;
  return pages_for(length) - std::ssize(*sequence.pages) + (shares_last_page(sequence) ? 1 : 0);
}

int64_t PageTable::free_tokens_to_reach(int64_t sequence, int64_t length) const {
  return needed_pages(find(sequence), length) * page_tokens_;
}

PageTable::Appended PageTable::append(const std::vector<Continuation>& continuations) {
  std::set<int64_t> named;
  int64_t needed = 0;
  for (const Continuation& more : continuations) {
    const Sequence& sequence = find(more.sequence);
    require(more.tokens >= 1,
            "sequence pool: expected one more token of sequence {} at least, got {}", more.sequence,
            more.tokens);
    require(named.insert(more.sequence).second,
            "sequence pool: sequence {} is named twice in one call; name it once", more.sequence);
    const int64_t end = sequence.length + more.tokens;
    int64_t before = sequence.length;
    for (const int64_t length : more.snapshots) {
      require(before < length && length < end,
              "sequence pool: expected snapshots within tokens {} to {} of sequence {}, one after "
              "another, got one of {}",
              sequence.length, end - 1, more.sequence, length);
      before = length;
    }
    needed += needed_pages(sequence, end);
  }
  require(needed <= std::ssize(free_pages_),
          "sequence pool: these tokens take {} pages of {} tokens more, but {} are free; free or "
          "truncate a sequence, or make the pool larger",
          needed, page_tokens_, free_pages_.size());

  Appended appended;
  for (const Continuation& more : continuations) {
    Sequence& sequence = find(more.sequence);
    const int64_t position = sequence.length, end = position + more.tokens;
    if (needed_pages(sequence, end) > 0) {
      auto pages = std::make_shared<Pages>(*sequence.pages);
      if (shares_last_page(sequence)) {
        const int64_t shared = pages->back();
        pages->pop_back();
        take_page(*pages);
        --page_uses_[shared];
        appended.copies.push_back({shared, pages->back()});
      }
      while (std::ssize(*pages) < pages_for(end)) take_page(*pages);
      sequence.pages = std::move(pages);
    }
    sequence.length = end;
    appended.spans.push_back({.tokens = more.tokens,
                              .position = position,
                              .sequence = more.sequence,
                              .slot = sequence.slot,
                              .pages = sequence.pages});
  }
  return appended;
}

// The one behind the last if it is free, so that a sequence's tokens lie in one piece.
void PageTable::take_page(Pages& pages) {
  const auto next = free_pages_.find(pages.empty() ? 0 : pages.back() + 1);
  const auto taken = next != free_pages_.end() ? next : free_pages_.begin();
  pages.push_back(*taken);
  page_uses_[*taken] = 1;
  free_pages_.erase(taken);
}

// All but the first `keep`.
void PageTable::release_pages(Sequence& sequence, int64_t keep) {
  if (keep == std::ssize(*sequence.pages)) return;
  auto pages = std::make_shared<Pages>(*sequence.pages);
  for (; std::ssize(*pages) > keep; pages->pop_back()) {
    if (--page_uses_[pages->back()] == 0) free_pages_.insert(pages->back());
  }
  sequence.pages = std::move(pages);
}

void PageTable::truncate(int64_t sequence, int64_t length) {
  Sequence& cut = find(sequence);
  require(0 <= length && length <= cut.length,
          "sequence pool: sequence {} has {} tokens; it cannot be cut to {}", sequence, cut.length,
          length);
  while (!cut.snapshots.empty() && cut.snapshots.back()->length > length) cut.snapshots.pop_back();
  cut.length = length;
  release_pages(cut, pages_for(length));
}

void PageTable::free(int64_t sequence) {
  Sequence& freed = find(sequence);
  release_pages(freed, 0);
  free_slots_.insert(freed.slot);
  sequences_.erase(sequence);
}

void PageTable::add_snapshot(int64_t sequence, const Snapshot& snapshot) {
  Snapshots& kept = find(sequence).snapshots;
  kept.push_back(std::make_shared<const Snapshot>(snapshot));
  snapshots_.push_back({kept.back(), dropped_});
  drop_snapshots();
}

void PageTable::use_snapshot(const Snapshot& snapshot) {
  const auto used = std::find_if(snapshots_.begin(), snapshots_.end(), [&](const auto& ranked) {
    return ranked.snapshot.get() == &snapshot;
  });
  used->since = dropped_;
  std::rotate(used, used + 1, snapshots_.end());
}

// By snapshot, how many tokens are computed again without it.
std::map<const Snapshot*, int64_t> PageTable::tokens_saved() const {
  std::map<const Snapshot*, int64_t> saved;
  for (const auto& [number, sequence] : sequences_) {
    int64_t before = 0;
    for (const auto& snapshot : sequence.snapshots) {
      const bool last = snapshot == sequence.snapshots.back();
      int64_t& tokens = saved[snapshot.get()];
      tokens = std::max(tokens, last ? snapshot->length : snapshot->length - before);
      before = snapshot->length;
    }
  }
  return saved;
}

void PageTable::drop_snapshots() {
  std::erase_if(snapshots_, [](const auto& ranked) { return ranked.snapshot.use_count() == 1; });
  while (snapshot_bytes() > snapshot_limit_) {
    const std::map<const Snapshot*, int64_t> saved = tokens_saved();
    const auto counted = [&](const RankedSnapshot& ranked) {
      return ranked.since + saved.at(ranked.snapshot.get());
    };
    const auto least =
        std::min_element(snapshots_.begin(), snapshots_.end(),
                         [&](const auto& a, const auto& b) { return counted(a) < counted(b); });
    dropped_ = std::max(dropped_, counted(*least));
    for (auto& [number, sequence] : sequences_) std::erase(sequence.snapshots, least->snapshot);
    snapshots_.erase(least);
  }
}

int64_t PageTable::snapshot_bytes() const {
  int64_t bytes = 0;
  for (const RankedSnapshot& ranked : snapshots_) {
    if (ranked.snapshot.use_count() > 1) bytes += ranked.snapshot->bytes;
  }
  return bytes;
}

void PageTable::require_newest(const std::vector<Span>& spans) const {
  for (const Span& span : spans) {
    const Sequence& now = find(span.sequence);
    require(span.end() == now.length && span.pages == now.pages,
            "sequence pool: these are tokens {} to {} of sequence {}, which has {}{}; append makes "
            "the spans of a call, each for one",
            span.position, span.end() - 1, span.sequence, now.length,
            span.pages == now.pages ? "" : ", in other pages by now");
  }
}

}  // namespace attnres
