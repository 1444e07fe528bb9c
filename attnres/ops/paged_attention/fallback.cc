#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "attnres/ops/composed.h"
#include "attnres/ops/paged_attention/paged_attention.h"
#include "attnres/ops/tensors.h"

namespace attnres {

using at::Tensor;

Tensor paged_attention_composed(const Tensor& q_THK, const Tensor& keys, const Tensor& values,
                                double scale, const std::vector<SeenTokens>& seen,
                                int64_t page_tokens, const Tensor& sinks_H) {
  note_composed("paged attention", q_THK);
  const int64_t group = q_THK.size(1) / keys.size(1);
  const at::ScalarType wide = compute_dtype(q_THK);
  std::vector<Tensor> outputs;
  for (const SeenTokens& of_query : seen) {
    std::vector<int64_t> rows;
    for (int64_t t = of_query.first; t < of_query.last; ++t) {
      rows.push_back(of_query.pages[t / page_tokens] * page_tokens + t % page_tokens);
    }
    const Tensor places = at::tensor(rows, at::kLong).to(q_THK.device());
    const auto by_head = [&](const Tensor& all) {
      return all.index_select(0, places).to(wide).repeat_interleave(group, 1);
    };
    const Tensor q_HK = q_THK[std::ssize(outputs)].to(wide);
    Tensor scores_NH = (by_head(keys) * q_HK).sum(-1) * scale;
    if (sinks_H.defined()) scores_NH = at::cat({scores_NH, sinks_H.to(wide).unsqueeze(0)});
    const Tensor weights_NH = scores_NH.softmax(0).narrow(0, 0, std::ssize(rows));
    outputs.push_back((weights_NH.unsqueeze(-1) * by_head(values)).sum(0));
  }
  return at::stack(outputs).to(q_THK.scalar_type());
}

}  // namespace attnres
