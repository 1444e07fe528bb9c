#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "attnres/ops/gated_streams/kernel.h"
#include "attnres/ops/recorded_operation.h"
#include "attnres/ops/small_products/small_products.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

// Numbers of a block's streams: a few such tensors stay in a core's own cache.
constexpr int64_t kBlockNumbers = int64_t{1} << 16;
constexpr int64_t kMostTokensOfBlock = 256;
// Tokens whose gradients of maps are added up by themselves: these sums are as large as the maps.
constexpr int64_t kTokensOfSums = 256;

// sum = A B, or sum + A B where `add` is true; of matrices whose rows are contiguous.
void multiply_into(const Tensor& sum_MN, const Tensor& a_MK, const Tensor& b_KN, bool add = false) {
  Tensor sum = sum_MN;
  if (sum.scalar_type() == at::kFloat && has_small_products(at::kFloat)) {
    attnres::multiply(sum.size(0), sum.size(1), a_MK.size(1), data<const float>(a_MK),
                      a_MK.stride(0), data<const float>(b_KN), b_KN.stride(0), data<float>(sum),
                      sum.stride(0), add);
  } else if (add) {
    sum.addmm_(a_MK, b_KN);
  } else {
    at::mm_out(sum, a_MK, b_KN);
  }
}

struct Maps {
  Maps(const Tensor& norm, const Tensor& project, const Tensor& up)
      : norm_ND(norm.contiguous()),
        project_RC(project.contiguous()),
        project_CR(project.t().contiguous()),
        up_CK(up.contiguous()),
        up_KC(up.t().contiguous()) {}

  Tensor norm_ND, project_RC, project_CR, up_CK, up_KC;

  int64_t streams() const { return norm_ND.size(0); }
  int64_t width() const { return norm_ND.size(1); }
  int64_t rank() const { return up_CK.size(1); }
  kernel::GatedStreamsSizes sizes() const { return {streams(), width()}; }
  int64_t tokens_of_block() const {
    return std::clamp<int64_t>(kBlockNumbers / norm_ND.numel(), 1, kMostTokensOfBlock);
  }
  at::TensorOptions like() const { return norm_ND.options().requires_grad(false); }
  // For each token as many numbers as it has in its streams.
  Tensor block(int64_t tokens) const { return at::empty({tokens, norm_ND.numel()}, like()); }
};

// Tokens of a thread, one block after the other: what is computed anew of each.
template <class Storage>
class Block {
 public:
  using T = kernel::Compute<Storage>;

  Block(const Tensor& streams_TND, const Maps& maps, double eps, int64_t most_tokens)
      : streams_(streams_TND),
        maps_(maps),
        eps_(eps),
        normed_(maps.block(most_tokens)),
        logits_(maps.block(most_tokens)),
        rho_(at::empty({most_tokens, maps.streams()}, maps.like())) {}

  void norm(int64_t first, int64_t tokens) {
    first_ = first;
    tokens_ = tokens;
    const kernel::GatedStreamsNorm<Storage> op{.sizes = maps_.sizes(),
                                               .streams_TND = streams(),
                                               .gain_ND = data<const T>(maps_.norm_ND),
                                               .eps = eps_,
                                               .normed_TND = data<T>(normed_),
                                               .rho_TN = data<T>(rho_)};
    kernel::gated_streams_norm(op, 0, tokens);
  }

  // U silu(p), of the first numbers of each token's projection.
  void find_logits(const Tensor& inner_TK) { multiply_into(logits(), inner_TK, maps_.up_KC); }

  Tensor normed() const { return normed_.narrow(0, 0, tokens_); }
  Tensor logits() const { return logits_.narrow(0, 0, tokens_); }
  const T* rho() const { return data<const T>(rho_); }
  const Storage* streams() const {
    return data<const Storage>(streams_) + first_ * maps_.norm_ND.numel();
  }

 private:
  const at::AutoDispatchBelowADInplaceOrView below_autograd_;  // on this thread
  const Tensor& streams_;
  const Maps& maps_;
  double eps_;
  Tensor normed_, logits_, rho_;
  int64_t first_ = 0, tokens_ = 0;
};

std::tuple<Tensor, Tensor> read_cpu(const Tensor& streams_TND, const Tensor& norm_ND,
                                    const Tensor& project_RC, const Tensor& up_CK, double eps) {
  const Tensor streams = streams_TND.contiguous();
  const Maps maps(norm_ND, project_RC, up_CK);
  RecordedOperation recorded("attnres::read_gated_streams", [&] {
    return std::vector<Tensor>{streams, maps.norm_ND, maps.project_RC, maps.up_CK};
  });
  const int64_t T = streams.size(0), most = std::min(T, maps.tokens_of_block());
  const Tensor x_TD = at::empty({T, maps.width()}, streams.options().requires_grad(false));
  const Tensor projected_TR = at::empty({T, project_RC.size(0)}, maps.like());
  with_storage_type(streams.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    with_small_products(T == 0 ? 0 : (T + most - 1) / most, [&](int64_t begin, int64_t end) {
      Block<Storage> block(streams, maps, eps, most);
      for (int64_t first = begin * most; first < std::min(end * most, T); first += most) {
        const int64_t tokens = std::min(most, T - first);
        block.norm(first, tokens);
        Tensor projected = projected_TR.narrow(0, first, tokens);
        multiply_into(projected, block.normed(), maps.project_CR);
        projected.div_(static_cast<double>(maps.streams()));
        block.find_logits(at::silu(projected.narrow(1, 0, maps.rank())));
        const kernel::GatedStreamsMean<Storage> op{
            .sizes = maps.sizes(),
            .normed_TND = data<const kernel::Compute<Storage>>(block.normed()),
            .logits_TND = data<const kernel::Compute<Storage>>(block.logits()),
            .x_TD = data<Storage>(x_TD) + first * maps.width()};
        kernel::gated_streams_mean(op, 0, tokens);
      }
    });
  });
  recorded.wrote({x_TD, projected_TR});
  return {x_TD, projected_TR};
}

// The gradients of the maps, of some tokens.
struct MapSums {
  MapSums(const Tensor& sums, const Maps& maps)
      : norm_ND(sums.narrow(0, 0, maps.norm_ND.numel()).view_as(maps.norm_ND)),
        project_RC(
            sums.narrow(0, maps.norm_ND.numel(), maps.project_RC.numel()).view_as(maps.project_RC)),
        up_KC(sums.narrow(0, maps.norm_ND.numel() + maps.project_RC.numel(), maps.up_KC.numel())
                  .view_as(maps.up_KC)) {}

  static int64_t numbers(const Maps& maps) {
    return maps.norm_ND.numel() + maps.project_RC.numel() + maps.up_CK.numel();
  }

  Tensor norm_ND, project_RC, up_KC;
};

std::tuple<Tensor, Tensor, Tensor> read_backward_cpu(
    const Tensor& grad_x_TD, const Tensor& grad_projected_TR, const Tensor& streams_TND,
    const Tensor& norm_ND, const Tensor& project_RC, const Tensor& up_CK,
    const Tensor& projected_TR, double eps, const std::optional<Tensor>& grad_streams,
    bool accumulate) {
  const Tensor streams = streams_TND.contiguous(), grad_x = grad_x_TD.contiguous();
  const Maps maps(norm_ND, project_RC, up_CK);
  const int64_t T = streams.size(0), C = maps.norm_ND.numel(), K = maps.rank();
  const int64_t most = std::min(std::max<int64_t>(T, 1), maps.tokens_of_block());
  const auto n = static_cast<double>(maps.streams());
  Tensor sums;
  with_storage_type(streams.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using Number = kernel::Compute<Storage>;
    const auto add_tokens = [&](int64_t begin, int64_t end, const Tensor& part) {
      MapSums sum(part, maps);
      Block<Storage> block(streams, maps, eps, most);
      const Tensor scratch = maps.block(most);
      for (int64_t first = begin; first < end; first += most) {
        const int64_t tokens = std::min(most, end - first);
        block.norm(first, tokens);
        const Tensor p_TK = projected_TR.narrow(0, first, tokens).narrow(1, 0, K),
                     inner_TK = at::silu(p_TK);
        block.find_logits(inner_TK);
        Tensor grad_normed = scratch.narrow(0, 0, tokens);
        const kernel::GatedStreamsMeanBackward<Storage> mean{
            .sizes = maps.sizes(),
            .grad_x_TD = data<const Storage>(grad_x) + first * maps.width(),
            .normed_TND = data<const Number>(block.normed()),
            .logits_TND = data<Number>(block.logits()),
            .grad_normed_TND = data<Number>(grad_normed)};
        kernel::gated_streams_mean_backward(mean, 0, tokens);
        const Tensor grad_logits = block.logits();
        multiply_into(sum.up_KC, inner_TK.t().contiguous(), grad_logits, /*add=*/true);
        const Tensor grad_inner = at::empty({tokens, K}, maps.like());
        multiply_into(grad_inner, grad_logits, maps.up_CK);
        Tensor grad_projected = grad_projected_TR.narrow(0, first, tokens).clone();
        grad_projected.narrow(1, 0, K).add_(at::silu_backward(grad_inner, p_TK));
        grad_projected.div_(n);
        multiply_into(sum.project_RC, grad_projected.t().contiguous(), block.normed(),
                      /*add=*/true);
        multiply_into(grad_normed, grad_projected, maps.project_RC, /*add=*/true);
        Number* grad_streams_TND = data<Number>(grad_streams.value_or(Tensor()));
        const kernel::GatedStreamsNormBackward<Storage> norm{
            .sizes = maps.sizes(),
            .streams_TND = block.streams(),
            .gain_ND = data<const Number>(maps.norm_ND),
            .rho_TN = block.rho(),
            .grad_normed_TND = data<const Number>(grad_normed),
            .grad_streams_TND = grad_streams_TND ? grad_streams_TND + first * C : nullptr,
            .accumulate = accumulate};
        kernel::gated_streams_norm_backward(norm, 0, tokens, data<Number>(sum.norm_ND));
      }
    };
    const auto add_up = [&](int64_t begin, int64_t end, const Tensor& part) {
      with_small_products(1, [&](int64_t, int64_t) { add_tokens(begin, end, part); });
    };
    sums = sum_over_tokens(T, MapSums::numbers(maps), maps.norm_ND.scalar_type(), add_up,
                           kTokensOfSums);
  });
  const MapSums all(sums, maps);
  return {all.norm_ND.clone(), all.project_RC.clone(), all.up_KC.t().contiguous()};
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("read_gated_streams_fused", &read_cpu);
  m.impl("read_gated_streams_fused_backward", &read_backward_cpu);
}

}  // namespace attnres
