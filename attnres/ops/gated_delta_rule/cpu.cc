#include <ATen/ops/exp.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "attnres/ops/gated_delta_rule/chunked.h"
#include "attnres/ops/gated_delta_rule/kernel.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

// Token by token where no gradient will be wanted.
std::tuple<Tensor, Tensor, std::vector<Tensor>> delta_rule_cpu(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay, const Tensor& beta,
    const Tensor& state, bool for_backward) {
  if (for_backward || !has_kernel(v) || compute_dtype(v) != q.scalar_type()) {
    const ChunkedDeltaRule result =
        chunked_delta_rule({q, k, v, log_decay, beta, state}, for_backward);
    return {result.o, result.state, result.saved};
  }
  const Tensor o = empty_like_rows(v), new_state = empty_like_rows(state);
  const Tensor decay = log_decay.exp().contiguous();
  const int64_t K = q.size(3), V = v.size(3), heads = q.size(0) * q.size(2);
  with_storage_type(v.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    Rows<T> rows(at::TensorList{});
    Rows<Storage> values(at::TensorList{});
    const kernel::GatedDeltaRule<Storage> op{.tokens = q.size(1),
                                             .heads = q.size(2),
                                             .key_width = K,
                                             .value_width = V,
                                             .q = rows.add(q),
                                             .k = rows.add(k),
                                             .decay = rows.add(decay),
                                             .v = values.add(v),
                                             .beta = rows.add(beta),
                                             .state = rows.add(state),
                                             .o = data<Storage>(o),
                                             .new_state = data<T>(new_state)};
    const int64_t numbers_a_piece = q.size(1) * K * kernel::kDeltaRuleColumns;
    parallel_over_tokens(heads * op.pieces(), numbers_a_piece, [&](int64_t first, int64_t last) {
      kernel::gated_delta_rule(op, first, last);
    });
  });
  return {o, new_state, std::vector<Tensor>()};
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("gated_delta_rule_fused", &delta_rule_cpu);
}

}  // namespace attnres
