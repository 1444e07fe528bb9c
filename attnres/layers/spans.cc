#include "attnres/layers/spans.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <iterator>

#include "attnres/layers/sequence_pool.h"

namespace attnres {
namespace {

// What `make` gives for a key, made once.
template <class Key, class Value, class Make>
const Value& once(std::map<Key, Value>& made, const Key& key, const Make& make) {
  const auto found = made.find(key);
  return found != made.end() ? found->second : made.emplace(key, make()).first->second;
}

at::Tensor index_of(const std::vector<int64_t>& numbers, at::Device device) {
  return at::tensor(numbers, at::kLong).to(device);
}

}  // namespace

Spans Spans::whole(int64_t count, int64_t tokens) {
  return {std::vector<Span>(static_cast<size_t>(count), Span{.tokens = tokens}), nullptr};
}

Spans::Spans(std::vector<Span> spans, SequencePool* pool, std::vector<FillerRows> fillers)
    : spans_(std::move(spans)), pool_(pool), fillers_(std::move(fillers)) {
  bool was_cut = false;
  for (size_t i = 0; i < spans_.size(); ++i) {
    const Span& span = spans_[i];
    const bool cut = !span.snapshots.empty();
    if (cut) {
      add_pieces(i);
    } else if (groups_.empty() || was_cut || groups_.back().tokens != span.tokens) {
      groups_.push_back({.first = i, .count = 1, .first_row = tokens_, .tokens = span.tokens});
    } else {
      ++groups_.back().count;
    }
    was_cut = cut;
    tokens_ += span.tokens;
  }
}

// Of a span that is cut.
void Spans::add_pieces(size_t span) {
  const int64_t position = spans_[span].position;
  std::vector<int64_t> ends;
  for (const Snapshot& snapshot : spans_[span].snapshots) ends.push_back(snapshot.length);
  ends.push_back(spans_[span].end());
  int64_t start = 0;
  for (const int64_t end : ends) {
    const int64_t tokens = end - position - start;
    groups_.push_back({span, 1, tokens_ + start, tokens, start});
    start += tokens;
  }
}

PageStore* Spans::store() const {
  return pool_ != nullptr ? &pool_->store() : nullptr;
}

at::Tensor Spans::batch(const at::Tensor& x, const SpanGroup& group) const {
  const auto count = static_cast<int64_t>(group.count);
  const bool all = count * group.tokens == tokens_;
  const at::Tensor rows = all ? x : x.narrow(0, group.first_row, count * group.tokens);
  return rows.unflatten(0, {count, group.tokens});
}

at::Tensor Spans::by_group(const std::function<at::Tensor(const SpanGroup&)>& compute) const {
  std::vector<at::Tensor> parts;
  for (const SpanGroup& group : groups_) parts.push_back(compute(group).flatten(0, 1));
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

// Where all spans are alike, it is that of one span, whose rows repeat.
RotaryTable Spans::table_of(const RotaryFrequencies& frequencies,
                            const at::TensorOptions& of_x) const {
  const auto of_span = [&](const Span& span) {
    return rotary_table(span.position, span.tokens, frequencies, of_x);
  };
  const bool alike = std::all_of(spans_.begin(), spans_.end(), [&](const Span& span) {
    return span.position == spans_[0].position && span.tokens == spans_[0].tokens;
  });
  if (alike) return of_span(spans_[0]);
  std::vector<at::Tensor> cosines, sines;
  for (const Span& span : spans_) {
    const RotaryTable table = of_span(span);
    cosines.push_back(table.cosine);
    sines.push_back(table.sine);
  }
  return {at::cat(cosines), at::cat(sines)};
}

at::Tensor Spans::turned(const at::Tensor& x_THK, const RotaryFrequencies& frequencies) const {
  const std::pair key(frequencies, x_THK.scalar_type());
  const RotaryTable& table =
      once(tables_, key, [&] { return table_of(frequencies, x_THK.options()); });
  return apply_rotary(x_THK.unflatten(0, {-1, table.cosine.size(0)}), table).flatten(0, 1);
}

const at::Tensor& Spans::rows() const {
  if (rows_.defined()) return rows_;
  const int64_t page = store()->page_tokens();
  std::vector<int64_t> rows;
  for (const Span& span : spans_) {
    for (int64_t t = span.position; t < span.end(); ++t) {
      rows.push_back((*span.pages)[t / page] * page + t % page);
    }
  }
  return rows_ = index_of(rows, store()->device());
}

const at::Tensor& Spans::scattered_pages(size_t span) const {
  return once(pages_, span, [&] {
    const Pages& pages = *spans_[span].pages;
    const bool in_one_piece =
        std::adjacent_find(pages.begin(), pages.end(),
                           [](int64_t a, int64_t b) { return b != a + 1; }) == pages.end();
    return in_one_piece ? at::Tensor() : index_of(pages, store()->device());
  });
}

const at::Tensor& Spans::slots(const SpanGroup& group) const {
  return once(slots_, group.first, [&] {
    std::vector<int64_t> slots;
    const auto first = spans_.begin() + static_cast<int64_t>(group.first);
    std::transform(first, first + static_cast<int64_t>(group.count), std::back_inserter(slots),
                   [](const Span& span) { return span.slot; });
    return index_of(slots, store()->device());
  });
}

const std::vector<SeenTokens>& Spans::seen(int64_t window) const {
  return once(seen_, window, [&] {
    std::vector<SeenTokens> seen;
    for (const Span& span : spans_) {
      for (int64_t t = span.position; t < span.end(); ++t) {
        const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, t + 1 - window);
        seen.push_back({span.pages->data(), first, t + 1});
      }
    }
    return seen;
  });
}

}  // namespace attnres
