#include "attnres/ops/head_maps/head_maps.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "attnres/ops/head_maps/kernel.h"
#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using at::Tensor;

enum class Form { plain, transposed };

// Heads by parts of their outputs, so that several threads share a weight, which serves all tokens
// while it is in the cache.
template <class Storage>
void run(const Tensor& x, const Tensor& w, const Tensor& y, Form form) {
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
        form == Form::plain ? kernel::head_map(op, first, last)
                            : kernel::transposed_head_map(op, first, last);
      }
    }
  });
}

Tensor maps(const Tensor& x, const Tensor& w, Form form) {
  const auto type = x.scalar_type();
  const int64_t input = form == Form::plain ? 2 : 1;
  require(x.dim() == 3 && w.dim() == 3 && x.is_cpu() && w.is_cpu() && x.size(1) == w.size(0) &&
              x.size(2) == w.size(input) && type == w.scalar_type() &&
              (type == at::kFloat || type == at::kBFloat16) && x.numel() > 0 && w.numel() > 0 &&
              x.stride(2) == 1 && w.stride(2) == 1 && w.stride(1) == w.size(2),
          "head maps: expected x [T, H, {}] and W [H, N, K] of float32 or bfloat16, whose rows "
          "follow each other; they are {} and {}",
          form == Form::plain ? "K" : "N", shape_of(x), shape_of(w));
  Tensor y = at::empty({x.size(0), x.size(1), w.size(3 - input)}, x.options());
  if (type == at::kFloat) {
    run<float>(x, w, y, form);
  } else {
    run<kernel::BFloat16>(x, w, y, form);
  }
  return y;
}

}  // namespace

Tensor head_maps(const Tensor& x_THK, const Tensor& w_HNK) {
  return maps(x_THK.detach(), w_HNK.detach(), Form::plain);
}

Tensor transposed_head_maps(const Tensor& x_THN, const Tensor& w_HNK) {
  return maps(x_THN.detach(), w_HNK.detach(), Form::transposed);
}

}  // namespace attnres
