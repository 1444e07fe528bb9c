#include "attnres/layers/sequence_pool.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "attnres/support/error.h"

namespace attnres {
namespace {

int64_t numbers(const std::vector<int64_t>& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

std::vector<int64_t> with_first(int64_t first, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> all = {first};
  all.insert(all.end(), sizes.begin(), sizes.end());
  return all;
}

// Each sequence's last page may be empty but for one token.
int64_t pages_of(const SequencePoolSize& size) {
  return size.tokens / size.page_tokens + size.sequences;
}

}  // namespace

int64_t KeptTensor::bytes() const {
  return numbers(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t pool_bytes(const std::vector<std::vector<KeptTensor>>& layers,
                   const SequencePoolSize& size) {
  int64_t bytes = 0;
  for (const std::vector<KeptTensor>& kept : layers) {
    for (const KeptTensor& tensor : kept) {
      const bool of_token = tensor.of == KeptTensor::Of::token;
      bytes += tensor.bytes() * (of_token ? pages_of(size) * size.page_tokens : size.sequences);
    }
  }
  return bytes;
}

SequencePool::SequencePool(std::vector<std::vector<KeptTensor>> layers,
                           const SequencePoolSize& size, at::Device device, const void* owner)
    : page_tokens_(size.page_tokens), snapshot_limit_(size.snapshot_bytes), owner_(owner) {
  require(size.sequences >= 1 && size.tokens >= 1 && size.page_tokens >= 1,
          "sequence pool: expected room for one sequence and one token or more, in pages of one or "
          "more, got {} sequences of together {} tokens in pages of {}",
          size.sequences, size.tokens, size.page_tokens);
  const int64_t pages = pages_of(size);
  for (int64_t page = 0; page < pages; ++page) free_pages_.insert(page);
  for (int64_t slot = 0; slot < size.sequences; ++slot) free_slots_.insert(slot);
  page_uses_.resize(pages);
  for (std::vector<KeptTensor>& kept : layers) {
    std::vector<Store>& stores = layers_.emplace_back();
    for (KeptTensor& tensor : kept) {
      const bool of_token = tensor.of == KeptTensor::Of::token;
      const int64_t places = of_token ? pages * page_tokens_ : size.sequences;
      Store& store = stores.emplace_back();
      const std::vector<int64_t> sizes = with_first(places, tensor.sizes);
      const auto options = at::TensorOptions(device).dtype(tensor.dtype);
      // What lies in pages is written before it is read, so that only pages in use take memory.
      store.values = of_token ? at::empty(sizes, options) : at::zeros(sizes, options);
      if (!of_token) store.positions.resize(places);
      store.kept = std::move(tensor);
    }
  }
}

template <class F>
void SequencePool::for_each_state(F f) {
  for (std::vector<Store>& stores : layers_) {
    for (Store& store : stores) {
      if (store.kept.of == KeptTensor::Of::sequence) f(store);
    }
  }
}

const SequencePool::Sequence& SequencePool::find(int64_t sequence) const {
  const auto found = sequences_.find(sequence);
  require(found != sequences_.end(), "sequence pool: there is no sequence {}", sequence);
  return found->second;
}

SequencePool::Sequence& SequencePool::find(int64_t sequence) {
  return const_cast<Sequence&>(std::as_const(*this).find(sequence));
}

int64_t SequencePool::add() {
  require(!free_slots_.empty(),
          "sequence pool: it has room for {} sequences, all in use; free one, or make it larger",
          sequences_.size());
  Sequence sequence;
  sequence.slot = *free_slots_.begin();
  free_slots_.erase(free_slots_.begin());
  set_states(sequence, nullptr);
  sequences_[next_sequence_] = std::move(sequence);
  return next_sequence_++;
}

bool SequencePool::shares_last_page(const Sequence& sequence) const {
  return sequence.length % page_tokens_ != 0 && page_uses_[sequence.pages.back()] > 1;
}

Spans SequencePool::append(const std::vector<Continuation>& continuations) {
  std::set<int64_t> named;
  int64_t needed = 0;
  for (const Continuation& more : continuations) {
    const Sequence& sequence = find(more.sequence);
    require(more.tokens >= 1,
            "sequence pool: expected one more token of sequence {} at least, got {}", more.sequence,
            more.tokens);
    require(named.insert(more.sequence).second,
            "sequence pool: sequence {} is named twice in one call; name it once", more.sequence);
    needed += free_tokens_to_reach(more.sequence, sequence.length + more.tokens) / page_tokens_;
  }
  require(needed <= static_cast<int64_t>(free_pages_.size()),
          "sequence pool: these tokens take {} pages of {} tokens more, but {} are free; free or "
          "truncate a sequence, or make the pool larger",
          needed, page_tokens_, free_pages_.size());

  std::vector<Span> spans;
  for (const Continuation& more : continuations) {
    Sequence& sequence = find(more.sequence);
    if (shares_last_page(sequence)) {
      const int64_t shared = sequence.pages.back();
      sequence.pages.pop_back();
      const int64_t own = take_page(sequence.pages.empty() ? -1 : sequence.pages.back());
      copy_page(shared, own);
      --page_uses_[shared];
      sequence.pages.push_back(own);
    }
    spans.push_back(
        {.tokens = more.tokens, .position = sequence.length, .sequence = more.sequence});
    sequence.length += more.tokens;
    while (static_cast<int64_t>(sequence.pages.size()) < pages_for(sequence.length)) {
      sequence.pages.push_back(take_page(sequence.pages.empty() ? -1 : sequence.pages.back()));
    }
  }
  return {std::move(spans), this};
}

// The one behind `after` if it is free, so that a sequence's tokens lie in one piece.
int64_t SequencePool::take_page(int64_t after) {
  const auto next = free_pages_.find(after + 1);
  const auto taken = next != free_pages_.end() ? next : free_pages_.begin();
  const int64_t page = *taken;
  free_pages_.erase(taken);
  page_uses_[page] = 1;
  return page;
}

// All but the first `keep`.
void SequencePool::release_pages(Sequence& sequence, size_t keep) {
  for (; sequence.pages.size() > keep; sequence.pages.pop_back()) {
    if (--page_uses_[sequence.pages.back()] == 0) free_pages_.insert(sequence.pages.back());
  }
}

void SequencePool::copy_page(int64_t from, int64_t to) {
  for (std::vector<Store>& stores : layers_) {
    for (Store& store : stores) {
      if (store.kept.of != KeptTensor::Of::token) continue;
      const auto page = [&](int64_t index) {
        return store.values.narrow(0, index * page_tokens_, page_tokens_);
      };
      page(to).copy_(page(from));
    }
  }
}

int64_t SequencePool::fork(int64_t sequence) {
  const Sequence& from = find(sequence);
  const int64_t forked = add();
  Sequence& to = find(forked);
  to.length = from.length;
  to.pages = from.pages;
  to.snapshots = from.snapshots;
  for (const int64_t page : to.pages) ++page_uses_[page];
  for_each_state([&](Store& store) {
    store.values.select(0, to.slot).copy_(store.values.select(0, from.slot));
    store.positions[to.slot] = store.positions[from.slot];
  });
  return forked;
}

int64_t SequencePool::truncate(int64_t sequence, int64_t length) {
  Sequence& cut = find(sequence);
  require(0 <= length && length <= cut.length,
          "sequence pool: sequence {} has {} tokens; it cannot be cut to {}", sequence, cut.length,
          length);
  while (!cut.snapshots.empty() && cut.snapshots.back()->length > length) cut.snapshots.pop_back();
  if (!states_are_at(cut, length)) {
    const Snapshot* last = cut.snapshots.empty() ? nullptr : cut.snapshots.back().get();
    set_states(cut, last);
    length = last != nullptr ? last->length : 0;
  }
  cut.length = length;
  release_pages(cut, static_cast<size_t>(pages_for(length)));
  return length;
}

void SequencePool::snapshot(int64_t sequence) {
  Sequence& kept = find(sequence);
  require(states_are_at(kept, kept.length),
          "sequence pool: sequence {} has tokens that were not computed yet; compute or truncate "
          "them before a snapshot",
          sequence);
  if (!kept.snapshots.empty() && kept.snapshots.back()->length == kept.length) return;
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->length = kept.length;
  for_each_state([&](Store& store) {
    snapshot->states.push_back(store.values.select(0, kept.slot).clone());
    snapshot->bytes += store.kept.bytes();
  });
  if (snapshot->states.empty()) return;
  kept.snapshots.push_back(snapshot);
  snapshots_.push_back(std::move(snapshot));
  drop_oldest_snapshots();
}

void SequencePool::drop_oldest_snapshots() {
  std::erase_if(snapshots_, [](const auto& snapshot) { return snapshot.use_count() == 1; });
  while (snapshot_bytes() > snapshot_limit_) {
    for (auto& [number, sequence] : sequences_) std::erase(sequence.snapshots, snapshots_.front());
    snapshots_.erase(snapshots_.begin());
  }
}

int64_t SequencePool::snapshot_bytes() const {
  int64_t bytes = 0;
  for (const auto& snapshot : snapshots_) {
    if (snapshot.use_count() > 1) bytes += snapshot->bytes;
  }
  return bytes;
}

bool SequencePool::states_are_at(const Sequence& sequence, int64_t length) const {
  for (const std::vector<Store>& stores : layers_) {
    for (const Store& store : stores) {
      if (!store.positions.empty() && store.positions[sequence.slot] != length) return false;
    }
  }
  return true;
}

// To those of a snapshot, or to their beginning.
void SequencePool::set_states(const Sequence& sequence, const Snapshot* snapshot) {
  size_t next = 0;
  for_each_state([&](Store& store) {
    const at::Tensor state = store.values.select(0, sequence.slot);
    if (snapshot != nullptr) {
      state.copy_(snapshot->states[next++]);
    } else {
      state.zero_();
    }
    store.positions[sequence.slot] = snapshot != nullptr ? snapshot->length : 0;
  });
}

void SequencePool::free(int64_t sequence) {
  Sequence& freed = find(sequence);
  release_pages(freed, 0);
  free_slots_.insert(freed.slot);
  sequences_.erase(sequence);
}

int64_t SequencePool::length(int64_t sequence) const {
  return find(sequence).length;
}

int64_t SequencePool::free_tokens() const {
  return static_cast<int64_t>(free_pages_.size()) * page_tokens_;
}

int64_t SequencePool::free_tokens_to_reach(int64_t sequence, int64_t length) const {
  const Sequence& more = find(sequence);
  if (length <= more.length) return 0;
  const int64_t pages =
      pages_for(length) - pages_for(more.length) + (shares_last_page(more) ? 1 : 0);
  return pages * page_tokens_;
}

int64_t SequencePool::bytes() const {
  int64_t bytes = 0;
  for (const std::vector<Store>& stores : layers_) {
    for (const Store& store : stores) bytes += static_cast<int64_t>(store.values.nbytes());
  }
  return bytes;
}

void SequencePool::require_newest(const Spans& spans) const {
  for (const Span& span : spans.all()) {
    const int64_t now = length(span.sequence);
    require(span.end() == now,
            "sequence pool: these are tokens {} to {} of sequence {}, which has {}; append makes "
            "the spans of a call, each for one",
            span.position, span.end() - 1, span.sequence, now);
  }
}

void SequencePool::write_tokens(int layer, size_t which, const Spans& spans,
                                const at::Tensor& rows) {
  const at::Tensor& values = store(layer, which).values;
  const at::Tensor given = rows.detach().to(values.options()).contiguous();
  const bool by_bytes = values.is_cpu();
  const size_t row_bytes = values.nbytes() / static_cast<size_t>(values.size(0));
  int64_t row = 0;
  for (const Span& span : spans.all()) {
    const std::vector<int64_t>& pages = find(span.sequence).pages;
    for (int64_t at = span.position; at < span.end();) {
      const int64_t in_page = at % page_tokens_;
      const int64_t count = std::min(page_tokens_ - in_page, span.end() - at);
      const int64_t to = pages[at / page_tokens_] * page_tokens_ + in_page;
      if (by_bytes) {
        std::memcpy(static_cast<char*>(values.data_ptr()) + to * row_bytes,
                    static_cast<const char*>(given.const_data_ptr()) + row * row_bytes,
                    count * row_bytes);
      } else {
        values.narrow(0, to, count).copy_(given.narrow(0, row, count));
      }
      row += count;
      at += count;
    }
  }
}

at::Tensor SequencePool::read_tokens(int layer, size_t which, const Span& span) const {
  const at::Tensor& values = store(layer, which).values;
  const std::vector<int64_t>& pages = find(span.sequence).pages;
  const int64_t count = pages_for(span.end());
  bool in_one_piece = true;
  for (int64_t i = 1; i < count; ++i) in_one_piece = in_one_piece && pages[i] == pages[i - 1] + 1;
  if (in_one_piece) return values.narrow(0, pages[0] * page_tokens_, span.end());
  const at::Tensor used = at::tensor(at::ArrayRef<int64_t>(pages.data(), count), at::kLong);
  return values.unflatten(0, {-1, page_tokens_})
      .index_select(0, used.to(values.device()))
      .flatten(0, 1)
      .narrow(0, 0, span.end());
}

// Of the states of a group's sequences, which have seen the tokens before the spans.
std::vector<int64_t> SequencePool::slots_of(const Store& kept, const Spans& spans,
                                            const SpanGroup& group) const {
  std::vector<int64_t> slots;
  for (size_t i = group.first; i < group.first + group.count; ++i) {
    const Span& span = spans.all()[i];
    slots.push_back(find(span.sequence).slot);
    require(kept.positions[slots.back()] == span.position,
            "sequence pool: the {} of sequence {} have seen {} tokens, so that they cannot go on "
            "from {}; after a call that failed, truncate",
            kept.kept.name, span.sequence, kept.positions[slots.back()], span.position);
  }
  return slots;
}

at::Tensor SequencePool::read_states(int layer, size_t which, const Spans& spans,
                                     const SpanGroup& group) const {
  const Store& kept = store(layer, which);
  const std::vector<int64_t> slots = slots_of(kept, spans, group);
  if (slots.size() == 1) return kept.values.narrow(0, slots[0], 1);
  return kept.values.index_select(0, at::tensor(slots, at::kLong).to(kept.values.device()));
}

std::vector<void*> SequencePool::change_states(int layer, size_t which, const Spans& spans,
                                               const SpanGroup& group) {
  Store& kept = store(layer, which);
  const std::vector<int64_t> slots = slots_of(kept, spans, group);
  auto* first = static_cast<char*>(kept.values.mutable_data_ptr());
  const auto bytes = kept.values.stride(0) * static_cast<int64_t>(kept.values.element_size());
  std::vector<void*> states;
  for (size_t i = 0; i < slots.size(); ++i) {
    states.push_back(first + slots[i] * bytes);
    kept.positions[slots[i]] = spans.all()[group.first + i].end();
  }
  return states;
}

void SequencePool::write_states(int layer, size_t which, const Spans& spans, const SpanGroup& group,
                                const at::Tensor& states) {
  Store& kept = store(layer, which);
  const at::Tensor given = states.detach();
  for (size_t i = 0; i < group.count; ++i) {
    const Span& span = spans.all()[group.first + i];
    const int64_t slot = find(span.sequence).slot;
    kept.values.select(0, slot).copy_(given.select(0, static_cast<int64_t>(i)));
    kept.positions[slot] = span.end();
  }
}

}  // namespace attnres
