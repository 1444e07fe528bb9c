#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "attnres/ops/head_maps/kernel.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

// Heads by parts of their outputs, so that several threads share a weight, which serves all tokens
// while it is in the cache.
template <class Storage>
void map_heads(const Tensor& x, const Tensor& w, const Tensor& y, bool transposed) {
  constexpr int64_t kOutputs = 128, kNumbersAThread = 16384;
  const int64_t T = x.size(0), H = x.size(1), outputs = y.size(2);
  const int64_t parts = (outputs + kOutputs - 1) / kOutputs;
  const int64_t numbers = w.size(1) * w.size(2) / parts * T;
  at::parallel_for(0, H * parts, 1 + kNumbersAThread / numbers, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t h = i / parts, first = i % parts * kOutputs;
      const int64_t last = std::min(first + kOutputs, outputs);
      for (int64_t t = 0; t < T; ++t) {
        const kernel::HeadMap<Storage> op = {
            .weight = data<const Storage>(w) + h * w.stride(0),
            .x = data<const Storage>(x) + t * x.stride(0) + h * x.stride(1),
            .y = data<Storage>(y) + (t * H + h) * outputs,
            .N = w.size(1),
            .K = w.size(2)};
        transposed ? kernel::transposed_head_map(op, first, last)
                   : kernel::head_map(op, first, last);
      }
    }
  });
}

Tensor head_maps_cpu(const Tensor& x, const Tensor& w, bool transposed) {
  require(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
          "head_maps_fused: there is no kernel for {}; use head_maps",
          c10::toString(x.scalar_type()));
  if (x.stride(2) != 1 || w.stride(2) != 1 || w.stride(1) != w.size(2)) {
    fail("head maps: the rows of W {} must follow each other, and the numbers of x {}; copy them",
         shape_of(w), shape_of(x));
  }
  Tensor y = at::empty({x.size(0), x.size(1), w.size(transposed ? 2 : 1)}, x.options());
  if (x.scalar_type() == at::kFloat) {
    map_heads<float>(x, w, y, transposed);
  } else {
    map_heads<kernel::BFloat16>(x, w, y, transposed);
  }
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("head_maps_fused", &head_maps_cpu);
}

}  // namespace attnres
