#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>

#include "attnres/ops/paged_attention/kernel.h"
#include "attnres/ops/paged_attention/paged_attention.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

// The tokens of a sequence that one thread reads, so that several share a long one.
constexpr int64_t kPartTokens = 256;

float rounded_to(float number, float) {
  return number;
}
kernel::BFloat16 rounded_to(float number, kernel::BFloat16) {
  return {c10::detail::round_to_nearest_even(number)};
}

// Tokens that a query sees.
struct Part {
  int64_t query = 0, first = 0, last = 0;
};

std::vector<Part> parts_of(const std::vector<SeenTokens>& seen) {
  std::vector<Part> parts;
  for (int64_t query = 0; query < std::ssize(seen); ++query) {
    const int64_t last = seen[query].last;
    for (int64_t first = seen[query].first; first < last; first += kPartTokens) {
      parts.push_back({query, first, std::min(first + kPartTokens, last)});
    }
  }
  return parts;
}

template <class Storage>
class PagedCall {
 public:
  PagedCall(const Tensor& q_THK, const Tensor& keys, const Tensor& values, double scale,
            const std::vector<SeenTokens>& seen, int64_t page_tokens, const Tensor& sinks_H,
            const Tensor& o_THV)
      : seen_(seen),
        q_(data<const Storage>(q_THK)),
        sinks_(data<const float>(sinks_H)),
        o_(data<Storage>(o_THV)),
        parts_(parts_of(seen)) {
    op_.keys = data<const Storage>(keys);
    op_.values = data<const Storage>(values);
    op_.page_tokens = page_tokens;
    op_.H = q_THK.size(1);
    op_.G = keys.size(1);
    op_.K = keys.size(2);
    op_.V = values.size(2);
    op_.value_row = values.stride(0);
    op_.scale = static_cast<float>(scale);
    results_.resize(parts_.size() * part_numbers());
  }

  void run() {
    constexpr int64_t kNumbersAThread = 16384;
    const int64_t part = (parts_[0].last - parts_[0].first) * op_.G * op_.K;
    at::parallel_for(0, std::ssize(parts_), 1 + kNumbersAThread / part,
                     [&](int64_t first, int64_t last) {
                       for (int64_t i = first; i < last; ++i) attend(i);
                     });
    for (int64_t i = 0; i < std::ssize(parts_);) i = combine(i);
  }

 private:
  // A part has max and sum of each head, then its sums.
  int64_t part_numbers() const { return op_.H * (2 + op_.V); }
  float* max(int64_t part) { return results_.data() + part * part_numbers(); }
  float* sum(int64_t part) { return max(part) + op_.H; }
  float* sums(int64_t part) { return sum(part) + op_.H; }

  void attend(int64_t i) {
    kernel::PagedAttention<Storage> op = op_;
    op.queries = q_ + parts_[i].query * op.H * op.K;
    op.pages = seen_[parts_[i].query].pages;
    op.max = max(i);
    op.sum = sum(i);
    op.sums = sums(i);
    kernel::paged_attention(op, parts_[i].first, parts_[i].last);
  }

  // The parts of one query, the first being `i`. Returns the first of the next.
  int64_t combine(int64_t i) {
    int64_t end = i + 1;
    while (end < std::ssize(parts_) && parts_[end].query == parts_[i].query) ++end;
    const int64_t H = op_.H, V = op_.V;
    for (int64_t h = 0; h < H; ++h) {
      float most = max(i)[h], total = 0;
      for (int64_t p = i + 1; p < end; ++p) most = std::max(most, max(p)[h]);
      if (sinks_ != nullptr) {
        most = std::max(most, sinks_[h]);
        total = std::exp(sinks_[h] - most);
      }
      float* all = sums(i) + h * V;
      for (int64_t p = i; p < end; ++p) {
        const float factor = std::exp(max(p)[h] - most);
        total += factor * sum(p)[h];
        for (int64_t v = 0; v < V; ++v) {
          all[v] = factor * sums(p)[h * V + v] + (p == i ? 0 : all[v]);
        }
      }
      Storage* o = o_ + (parts_[i].query * H + h) * V;
      for (int64_t v = 0; v < V; ++v) o[v] = rounded_to(all[v] / total, Storage());
    }
    return end;
  }

  const std::vector<SeenTokens>& seen_;
  const Storage* q_;
  const float* sinks_;  // null: none
  Storage* o_;
  std::vector<Part> parts_;
  kernel::PagedAttention<Storage> op_;
  std::vector<float> results_;
};

Tensor attend_on_cpu(const Tensor& q_THK, const Tensor& keys, const Tensor& values, double scale,
                     const std::vector<SeenTokens>& seen, int64_t page_tokens,
                     const Tensor& sinks_H) {
  if (!can_page_attention(q_THK)) {
    return paged_attention_composed(q_THK, keys, values, scale, seen, page_tokens, sinks_H);
  }
  const Tensor q = q_THK.contiguous();
  const Tensor sinks = sinks_H.defined() ? sinks_H.to(at::kFloat).contiguous() : sinks_H;
  Tensor o = at::empty({q.size(0), q.size(1), values.size(2)}, q.options());
  if (q.scalar_type() == at::kFloat) {
    PagedCall<float>(q, keys, values, scale, seen, page_tokens, sinks, o).run();
  } else {
    PagedCall<kernel::BFloat16>(q, keys, values, scale, seen, page_tokens, sinks, o).run();
  }
  return o;
}

const OnDevice paged_attention_cpu(paged_attention_table, at::kCPU, &attend_on_cpu);

}  // namespace
}  // namespace attnres
