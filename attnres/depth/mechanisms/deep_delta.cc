// Deep Delta Learning (Zhang et al., arXiv 2601.00417): the state is a matrix X [d, d_v] a token,
// and a sublayer's output the direction k along which it is rewritten:
//   X <- X + beta k (v^T - k^T X) = (I - beta k k^T) X + beta k v^T
//   x = sum_t r_t * X_t,  u = norm(x),  k = f(u) / |f(u)|,  v = W_v u,  beta = 2 sg(w . u + b)
// X_t is column t of X, r [d, d_v] the site's read-out, sg the sigmoid. beta is between 0 (nothing
// happens), 1 (k's component is replaced by v) and 2 (a reflection). The output site reads like any
// other. X starts as d_v copies of the embedding; d_v is the setting `value_channels`. With d_v = 1
// there is no r: x = X.
//
// Start: r = 1/d_v, W_v as the model's other maps, w = 0 and b = 0, so that beta = 1: not residual.
//
// k = f / sqrt(|f|^2 + 1e-10), as the authors' code has it. That code differs in two things which
// the formula leaves open: v = 4 sg(W_v x + c) of the state before its norm, and short convolutions
// over tokens before r; neither is here. With weights held (depth_mixer.h), beta, v, |f| and the
// erased direction are constants, k in the write is not.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sigmoid.h>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

constexpr double kSquaredLengthEps = 1e-10;

struct DeepDeltaSettings {
  int64_t value_channels = 4;

  template <class V>
  void visit(V& v) {
    v("value_channels", value_channels, "d_v, columns of the state", from_to(1, 64));
  }
};

class DeepDelta final : public ComposedMixer {
 public:
  DeepDelta(const DeepDeltaSettings& settings, const MixerShape& shape,
            ParameterRegistry& parameters)
      : ComposedMixer(shape), channels_(settings.value_channels) {
    const int64_t d = shape.width, V = channels_;
    for (int l = 0; l <= shape.sublayers; ++l) {
      Site site;
      site.input_norm = add_norm(parameters, l, "input_norm", shape);
      if (V > 1) {
        site.readout = parameters.add(l, "readout", ParameterKind::mixing, {V, d},
                                      Init::constant(1.0 / static_cast<double>(V)));
      }
      if (l < shape.sublayers) {
        site.value =
            parameters.add(l, "value", ParameterKind::matrix, {V, d}, Init::normal(shape.init_std));
        site.gate = parameters.add(l, "gate", ParameterKind::matrix, {1, d}, Init::zeros());
        site.gate_bias = parameters.add(l, "gate_bias", ParameterKind::mixing, {1}, Init::zeros());
      }
      sites_.push_back(site);
    }
  }

  // The state is kept as [T, d_v, D], the columns of X one after another.
  DepthState start(const at::Tensor& embedding_TD) const override {
    return {.open = {embedding_TD.unsqueeze(1).repeat({1, channels_, 1})}};
  }

  StatePlan plan(int) const override {
    return {.open = {{.name = "X", .sizes = {channels_, shape().width}}}};
  }

  SublayerInput read(DepthState& state) const override {
    const Site& site = sites_[state.site];
    const at::Tensor& X_TVD = state.open[0];
    const at::Tensor x_TD =
        site.readout.defined() ? (X_TVD * held(state, site.readout)).sum(1) : X_TVD.select(1, 0);
    show_mixed(state, x_TD);
    const at::Tensor u_TD = normalize(state, x_TD, site.input_norm, shape().norm_eps);
    if (state.site < shape().sublayers) {
      const at::ScalarType wide = compute_dtype(u_TD);
      auto rewrite = std::make_unique<Rewrite>();
      const at::Tensor gate_T1 = wide_linear(u_TD, site.gate).to(wide) + site.gate_bias;
      rewrite->beta_T1 = held(state, 2 * at::sigmoid(gate_T1));
      rewrite->value_TV = held(state, wide_linear(u_TD, site.value).to(wide));
      state.carried = std::move(rewrite);
    }
    return {u_TD};
  }

  at::Tensor running_state(const DepthState& state) const override { return state.open[0].mean(1); }

 private:
  struct Site {
    at::Tensor input_norm;       // [D]
    at::Tensor readout;          // r [d_v, D]; undefined for d_v = 1
    at::Tensor value;            // W_v [d_v, D]
    at::Tensor gate, gate_bias;  // w [1, D], b [1]
  };

  // From a read to the write that follows it, in float32 or better.
  struct Rewrite : CarriedToWrite {
    at::Tensor beta_T1, value_TV;
  };

  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    const auto& rewrite = static_cast<const Rewrite&>(*state.carried);
    const at::Tensor& X_TVD = state.open[0];
    const at::ScalarType storage = X_TVD.scalar_type(), wide = compute_dtype(X_TVD);
    const at::Tensor inverse_length =
        held(state, at::linalg_vector_norm(y_TD, 2, {-1}, /*keepdim=*/true, wide)
                        .square()
                        .add(kSquaredLengthEps)
                        .rsqrt());
    const at::Tensor k_TD = y_TD * inverse_length.to(storage);
    const at::Tensor erased_k_TD = held(state, k_TD);
    const at::Tensor present_TV = at::matmul(X_TVD, erased_k_TD.unsqueeze(-1)).squeeze(-1).to(wide);
    const auto along = [&](const at::Tensor& X, const at::Tensor& amounts_TV,
                           const at::Tensor& direction_TD) {
      return at::addcmul(X, (rewrite.beta_T1 * amounts_TV).to(storage).unsqueeze(-1),
                         direction_TD.unsqueeze(1));
    };
    state.open[0] = holds_weights(state)
                        ? along(along(X_TVD, rewrite.value_TV, k_TD), -present_TV, erased_k_TD)
                        : along(X_TVD, rewrite.value_TV - present_TV, k_TD);
  }

  int64_t channels_;
  std::vector<Site> sites_;
};

}  // namespace

Mechanism deep_delta_mechanism() {
  return define_mechanism<DeepDeltaSettings, DeepDelta>(
      {.name = "deep_delta",
       .formula = "X <- X + beta k (v^T - k^T X), k = f_l(u) / |f_l(u)|, u = norm(sum_t r_t * X_t)",
       .start = "beta = 1: k's component of X is replaced by v",
       .source = "Deep Delta Learning, arXiv 2601.00417",
       .traffic = "(2 d_v + 1)d",
       .details = "X is d x d_v, d_v = value_channels columns X_t, copies of v_0 at first. h_l = "
                  "sum_t r_t * X_t, u = x_l = norm(h_l), k = y_l / sqrt(|y_l|^2 + 1e-10), v = W_v "
                  "u, beta = 2 sg(w . u + b). With d_v = 1 there is no r: h_l = X.",
       .roles = {input_norm_role(),
                 {"readout", "[d_v, d]: r, row t for column X_t; none if d_v = 1"},
                 {"value", "[d_v, d]: W_v"},
                 {"gate", "[1, d]: w"},
                 {"gate_bias", "[1]: b"}}},
      // X and y read, X written.
      [](const DeepDeltaSettings& settings, const MixerShape&) {
        return 2.0 * settings.value_channels + 1;
      });
}

}  // namespace attnres
