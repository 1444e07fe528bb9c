// LAuReL, the learned augmented residual layer (Menghani et al., arXiv 2411.07501):
//   h_{l+1} = a_l f_l(norm(h_l)) + b_l (h_l + sum_k gamma_{l,k} B_{l,k} A_{l,k} h_{l-k}),
//   h_0 = embedding
// with the parts that `variant` names:
//   RW  the residual weights (a, b) = 2 softmax(s), s [2] learned; otherwise a = b = 1
//   LR  a low-rank map of the present state: k = 0 alone, without gamma
//   PA  low-rank maps of this state and the two before it (k = 0, 1, 2, as far as there are any),
//       each with a learned scalar gamma
// A is [rank, d] and B [d, rank]. Each norm is RMSNorm with its own gain; the output site reads
// norm(h_L). It starts at s = 0 (a = b = 1), gamma = 1, B = 0, A = 1 / sqrt(rank d) where column
// mod rank = row and 0 elsewhere: residual, exactly.
//
// Ours: the factor 2 of RW, so that a = b = 1 at first; gamma = 1. Unverified: that each state that
// PA looks back to has maps of its own.
#include <ATen/ops/add.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/softmax.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"

namespace attnres {
namespace {

constexpr int kActivations = 3;  // states that PA looks at

struct LaurelSettings {
  std::string variant = "rw+lr";
  int64_t rank = 32;

  template <class V>
  void visit(V& v) {
    v("variant", variant, "its parts: residual weights, low-rank maps, and of earlier states too",
      one_of({"rw", "lr", "pa", "rw+lr", "rw+pa"}));
    v("rank", rank, "of every map; the paper has 32 to 64; rw has no maps", dimension(1));
  }

  bool weighs_residual() const { return variant.starts_with("rw"); }
  bool looks_back() const { return variant.ends_with("pa"); }
  // States that the maps of a site read, from the latest back.
  int activations(int site) const {
    if (looks_back()) return std::min(site + 1, kActivations);
    return variant.ends_with("lr") ? 1 : 0;
  }
};

class Laurel : public NormedMixer {
 public:
  Laurel(const LaurelSettings& settings, const MixerShape& shape, ParameterRegistry& parameters)
      : NormedMixer(shape, parameters), settings_(settings) {
    for (int l = 0; l < shape.sublayers; ++l) {
      Site site;
      if (settings.weighs_residual()) {
        site.weights =
            parameters.add(l, "residual_weights", ParameterKind::mixing, {2}, Init::zeros());
      }
      for (int k = 0; k < settings.activations(l); ++k) {
        site.maps.push_back(add_map(parameters, l, k));
      }
      sites_.push_back(std::move(site));
    }
  }

  StatePlan plan(int site) const override {
    StatePlan plan;
    for (int k = 0; k < kept_before(site); ++k) {
      plan.open.push_back({.name = k == 0 ? "stream" : fmt::format("stream {} sites before", k),
                           .sizes = {shape().width}});
    }
    return plan;
  }

 private:
  struct LowRankMap {
    at::Tensor down, up;  // A, B
    at::Tensor gamma;     // undefined but of PA
  };
  struct Site {
    at::Tensor weights;  // s; undefined without RW
    std::vector<LowRankMap> maps;
  };

  LowRankMap add_map(ParameterRegistry& parameters, int site, int k) const {
    const int64_t d = shape().width, rank = settings_.rank;
    const double entry = 1 / std::sqrt(static_cast<double>(rank * d));
    const Init ones_by_turns =
        Init::by_index([d, rank, entry](int64_t i) { return i % d % rank == i / d ? entry : 0.0; });
    const auto role = [&](const char* name) {
      return settings_.looks_back() ? fmt::format("{}_{}", name, k) : std::string(name);
    };
    LowRankMap map;
    map.down = parameters.add(site, role("low_rank_down"), ParameterKind::matrix, {rank, d},
                              ones_by_turns);
    map.up =
        parameters.add(site, role("low_rank_up"), ParameterKind::matrix, {d, rank}, Init::zeros());
    if (settings_.looks_back()) {
      map.gamma = parameters.add(site, role("gamma"), ParameterKind::mixing, {1}, Init::ones());
    }
    return map;
  }

  // The state's open tensors are h_l, then the earlier states that its site looks back to.
  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    const Site& site = sites_[state.site];
    at::Tensor skip_TD = state.open[0];
    for (size_t k = 0; k < site.maps.size(); ++k) {
      const LowRankMap& map = site.maps[k];
      const at::Tensor mapped_TD =
          wide_linear(wide_linear(state.open[k], held(state, map.down)), held(state, map.up));
      skip_TD = map.gamma.defined() ? at::addcmul(skip_TD, mapped_TD, held(state, map.gamma))
                                    : at::add(skip_TD, mapped_TD);
    }
    state.open.insert(state.open.begin(), merge(state, site.weights, y_TD, skip_TD));
    state.open.resize(kept_before(state.site + 1));
  }

  // How many states a site needs, its own included.
  int kept_before(int site) const {
    return site < shape().sublayers ? std::max(settings_.activations(site), 1) : 1;
  }

  // a y + b skip
  static at::Tensor merge(const DepthState& state, const at::Tensor& weights,
                          const at::Tensor& y_TD, const at::Tensor& skip_TD) {
    if (!weights.defined()) return at::add(y_TD, skip_TD);
    const auto precise = c10::promoteTypes(weights.scalar_type(), at::kFloat);
    const at::Tensor ab = held(state, at::mul(at::softmax(weights, 0, precise), 2));
    return at::add(at::mul(y_TD, ab[0]), at::mul(skip_TD, ab[1]));
  }

  LaurelSettings settings_;
  std::vector<Site> sites_;
};

// Beside the merge, each map reads a state, and writes and reads again `rank` numbers.
double laurel_traffic(const LaurelSettings& settings, const MixerShape& shape) {
  int64_t maps = 0;
  for (int site = 0; site < shape.sublayers; ++site) maps += settings.activations(site);
  const double rank = static_cast<double>(settings.rank) / static_cast<double>(shape.width);
  return 3 + static_cast<double>(maps) / shape.sublayers * (1 + 2 * rank);
}

}  // namespace

Mechanism laurel_mechanism() {
  return define_mechanism<LaurelSettings, Laurel>(
      {.name = "laurel",
       .formula = "h_{l+1} = a f_l(norm(h_l)) + b (h_l + sum_k gamma_k B_k A_k h_{l-k})",
       .start = "a = b = 1, B = 0: residual",
       .source = "LAuReL, arXiv 2411.07501",
       .traffic = "3d; d + 2 rank more for each of its maps",
       .details = "h_0 = v_0; x_l = norm(h_l), at the output too. variant: rw has (a, b) = 2 "
                  "softmax(s), without it a = b = 1; lr has the term k = 0 alone, without gamma; "
                  "pa has the terms k = 0, 1, 2, as far as h_{l-k} exists. B A h = B (A h).",
       .roles = {input_norm_role(),
                 {"residual_weights", "[2]: s, of a and of b"},
                 {"low_rank_down", "[rank, d]: A"},
                 {"low_rank_up", "[d, rank]: B"},
                 {"low_rank_down_0", "[rank, d]: A_0, of h_{l}"},
                 {"low_rank_up_0", "[d, rank]: B_0"},
                 {"gamma_0", "[1]: gamma_0"},
                 {"low_rank_down_1", "[rank, d]: A_1, of h_{l-1}"},
                 {"low_rank_up_1", "[d, rank]: B_1"},
                 {"gamma_1", "[1]: gamma_1"},
                 {"low_rank_down_2", "[rank, d]: A_2, of h_{l-2}"},
                 {"low_rank_up_2", "[d, rank]: B_2"},
                 {"gamma_2", "[1]: gamma_2"}}},
      laurel_traffic);
}

}  // namespace attnres
