#include "attnres/layers/page_store.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "attnres/support/error.h"

namespace attnres {
namespace {

std::vector<int64_t> with_first(int64_t first, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> all = {first};
  all.insert(all.end(), sizes.begin(), sizes.end());
  return all;
}

bool is_of_sequence(const KeptTensor& kept) {
  return kept.of == KeptTensor::Of::sequence;
}

// Calls f for each of all layers' stores that is of sequences, or of tokens.
template <class Layers, class F>
void for_each_store(Layers& layers, KeptTensor::Of of, const F& f) {
  for (auto& stores : layers) {
    for (auto& store : stores) {
      if (store.kept.of == of) f(store);
    }
  }
}

// Whether the numbers of a row lie in one piece; rows may lie apart.
bool has_whole_rows(const at::Tensor& x) {
  int64_t within = 1;
  for (int64_t d = x.dim() - 1; d > 0; within *= x.size(d--)) {
    if (x.size(d) != 1 && x.stride(d) != within) return false;
  }
  return true;
}

// Copies the rows of `part` into these rows of `values`, from the number `first` of each on.
void write_rows(const at::Tensor& part, const at::Tensor& rows, int64_t first,
                const at::Tensor& values) {
  const at::Tensor same =
      part.scalar_type() == values.scalar_type() ? part : part.to(values.scalar_type());
  const at::Tensor given = has_whole_rows(same) ? same : same.contiguous();
  const auto size = static_cast<int64_t>(values.element_size());
  const int64_t bytes = given.numel() / given.size(0) * size;
  const auto* from = static_cast<const char*>(given.const_data_ptr());
  auto* to = static_cast<char*>(values.mutable_data_ptr()) + first * size;
  const auto* row = rows.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < given.size(0); ++t) {
    std::memcpy(to + row[t] * values.stride(0) * size, from + t * given.stride(0) * size, bytes);
  }
}

}  // namespace

struct KeptStates {
  std::vector<at::Tensor> states;  // in the order of the stores; undefined until they are saved
};

int64_t KeptTensor::bytes() const {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : sizes) bytes *= size;
  return bytes;
}

int64_t pool_bytes(const std::vector<std::vector<KeptTensor>>& layers,
                   const SequencePoolSize& size) {
  int64_t bytes = 0;
  for (const std::vector<KeptTensor>& kept : layers) {
    for (const KeptTensor& tensor : kept) {
      bytes += tensor.bytes() *
               (is_of_sequence(tensor) ? size.sequences : size.pages() * size.page_tokens);
    }
  }
  return bytes;
}

PageStore::PageStore(std::vector<std::vector<KeptTensor>> layers, const SequencePoolSize& size,
                     at::Device device)
    : page_tokens_(size.page_tokens), device_(device) {
  for (std::vector<KeptTensor>& kept : layers) {
    std::vector<Store>& stores = layers_.emplace_back();
    for (KeptTensor& tensor : kept) {
      const bool of_sequence = is_of_sequence(tensor);
      const int64_t places = of_sequence ? size.sequences : size.pages() * page_tokens_;
      Store& store = stores.emplace_back();
      const std::vector<int64_t> sizes = with_first(places, tensor.sizes);
      const auto options = at::TensorOptions(device).dtype(tensor.dtype);
      // What lies in pages is written before it is read, so that only pages in use take memory.
      store.values = of_sequence ? at::zeros(sizes, options) : at::empty(sizes, options);
      if (of_sequence) {
        store.positions.resize(places);
        store.state = states_++;
      }
      store.kept = std::move(tensor);
    }
  }
}

int64_t PageStore::bytes() const {
  int64_t bytes = 0;
  for (const std::vector<Store>& stores : layers_) {
    for (const Store& store : stores) bytes += static_cast<int64_t>(store.values.nbytes());
  }
  return bytes;
}

void PageStore::copy_page(const PageTable::PageCopy& page) {
  for_each_store(layers_, KeptTensor::Of::token, [&](const Store& store) {
    const auto rows_of = [&](int64_t index) {
      return store.values.narrow(0, index * page_tokens_, page_tokens_);
    };
    rows_of(page.to).copy_(rows_of(page.from));
  });
}

void PageStore::copy_states(int64_t from_slot, int64_t to_slot) {
  for_each_store(layers_, KeptTensor::Of::sequence, [&](Store& store) {
    store.values.select(0, to_slot).copy_(store.values.select(0, from_slot));
    store.positions[to_slot] = store.positions[from_slot];
  });
}

std::shared_ptr<KeptStates> PageStore::make_states() const {
  return std::make_shared<KeptStates>(KeptStates{std::vector<at::Tensor>(states_)});
}

void PageStore::save_states(int64_t slot, KeptStates& states) const {
  for_each_store(layers_, KeptTensor::Of::sequence, [&](const Store& store) {
    states.states[store.state] = store.values.select(0, slot).clone();
  });
}

bool PageStore::has_all(const KeptStates& states) const {
  return std::all_of(states.states.begin(), states.states.end(),
                     [](const at::Tensor& state) { return state.defined(); });
}

void PageStore::set_states(int64_t slot, const Snapshot* snapshot) {
  for_each_store(layers_, KeptTensor::Of::sequence, [&](Store& store) {
    const at::Tensor state = store.values.select(0, slot);
    if (snapshot != nullptr) {
      state.copy_(snapshot->states->states[store.state]);
    } else {
      state.zero_();
    }
    store.positions[slot] = snapshot != nullptr ? snapshot->length : 0;
  });
}

int64_t PageStore::state_bytes() const {
  int64_t bytes = 0;
  for_each_store(layers_, KeptTensor::Of::sequence,
                 [&](const Store& store) { bytes += store.kept.bytes(); });
  return bytes;
}

bool PageStore::states_are_at(int64_t slot, int64_t length) const {
  bool all = true;
  for_each_store(layers_, KeptTensor::Of::sequence,
                 [&](const Store& store) { all = all && store.positions[slot] == length; });
  return all;
}

void PageStore::write_tokens(int layer, size_t which, const Spans& spans, at::TensorList parts) {
  const at::Tensor& values = store(layer, which).values;
  int64_t first = 0;  // of a row's numbers, the part's
  for (const at::Tensor& part : parts) {
    const int64_t numbers = part.numel() / part.size(0);
    if (values.is_cpu()) {
      write_rows(part, spans.rows(), first, values);
    } else {
      values.flatten(1)
          .narrow(1, first, numbers)
          .index_copy_(0, spans.rows(), part.detach().flatten(1).to(values.scalar_type()));
    }
    first += numbers;
  }
}

at::Tensor PageStore::read_tokens(int layer, size_t which, const Spans& spans, size_t i) const {
  const at::Tensor& values = store(layer, which).values;
  const Span& span = spans.all()[i];
  const at::Tensor& pages = spans.scattered_pages(i);
  if (!pages.defined()) return values.narrow(0, span.pages->front() * page_tokens_, span.end());
  return values.unflatten(0, {-1, page_tokens_})
      .index_select(0, pages)
      .flatten(0, 1)
      .narrow(0, 0, span.end());
}

// The states of a group's sequences have seen the tokens before it, which may be where a snapshot
// is made.
void PageStore::begin(const Store& store, const Spans& spans, const SpanGroup& group) const {
  for (size_t i = group.first; i < group.first + group.count; ++i) {
    const Span& span = spans.all()[i];
    const int64_t seen = store.positions[span.slot];
    const int64_t position = span.position + group.start;
    require(seen == position,
            "sequence pool: the {} of sequence {} have seen {} tokens, so that they cannot go on "
            "from {}; after a call that failed, truncate",
            store.kept.name, span.sequence, seen, position);
    for (const Snapshot& snapshot : span.snapshots) {
      if (snapshot.length != position) continue;
      snapshot.states->states[store.state] = store.values.select(0, span.slot).clone();
    }
  }
}

at::Tensor PageStore::read_states(int layer, size_t which, const Spans& spans,
                                  const SpanGroup& group) const {
  const Store& kept = store(layer, which);
  begin(kept, spans, group);
  if (group.count == 1) return kept.values.narrow(0, spans.all()[group.first].slot, 1);
  return kept.values.index_select(0, spans.slots(group));
}

std::vector<void*> PageStore::change_states(int layer, size_t which, const Spans& spans,
                                            const SpanGroup& group) {
  Store& kept = store(layer, which);
  begin(kept, spans, group);
  auto* first = static_cast<char*>(kept.values.mutable_data_ptr());
  std::vector<void*> states;
  for (size_t i = group.first; i < group.first + group.count; ++i) {
    const Span& span = spans.all()[i];
    states.push_back(first + span.slot * kept.kept.bytes());
    kept.positions[span.slot] = span.position + group.start + group.tokens;
  }
  return states;
}

void PageStore::write_states(int layer, size_t which, const Spans& spans, const SpanGroup& group,
                             const at::Tensor& states) {
  Store& kept = store(layer, which);
  kept.values.index_copy_(0, spans.slots(group), states.detach().to(kept.values.scalar_type()));
  for (size_t i = group.first; i < group.first + group.count; ++i) {
    const Span& span = spans.all()[i];
    kept.positions[span.slot] = span.position + group.start + group.tokens;
  }
}

}  // namespace attnres
