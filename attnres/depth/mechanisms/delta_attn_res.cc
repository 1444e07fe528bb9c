#include "attnres/depth/mechanisms/delta_attn_res.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <fmt/core.h>

#include <algorithm>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/depth/site_groups.h"
#include "attnres/ops/depth_attention/two_phase.h"
#include "attnres/ops/depth_scores/depth_scores.h"
#include "attnres/ops/gradient_slot.h"
#include "attnres/ops/rms_norm/rms_norm.h"

namespace attnres {
namespace {

// The state's open tensors: the residual stream, and inside a block what the block has added to it.
enum DeltaStream { kResidual, kPartial };

class DeltaAttnRes final : public DepthMixer {
 public:
  DeltaAttnRes(const DeltaAttnResSettings& settings, const MixerShape& shape,
               ParameterRegistry& parameters)
      : settings_(settings), shape_(shape) {
    for (int l = 0; l <= shape.sublayers; ++l) sites_.push_back(make_site(l, parameters));
  }

  DepthState start(const at::Tensor& embedding_TD) const override {
    return {.sealed = {embedding_TD}, .open = {embedding_TD}};
  }

  SublayerInput read(DepthState& state) const override {
    if (!mixes(state.site)) return read_stream(state);
    const Site& site = sites_[state.site];
    const bool by_weights = holds_weights(state) || drops_source(state);
    at::Tensor mixed_TD = by_weights ? mix_by_weights(state) : mix_in_two_phases(state);
    const at::Tensor& r_TD = state.open[kResidual];
    if (site.gate.defined()) mixed_TD = mixed_TD * held(state, site.gate);
    const SublayerInput input = normed_sum(state, r_TD, mixed_TD.to(r_TD.scalar_type()));
    if (state.analysis != nullptr) show(state);
    return input;
  }

  void write(DepthState& state, SublayerOutput output) const override {
    state.pending = std::move(output.y);
    ++state.site;
  }

  void settle(DepthState& state) const override {
    fold(state);
    state.cache.reset();
  }

  StatePlan plan(int site) const override {
    StatePlan plan;
    const std::vector<int64_t> sizes = {shape_.width};
    const int last_reader = shape_.sublayers - 1;
    const int64_t blocks = std::min(site, last_reader) / settings_.block_size;
    for (int64_t n = 0; n <= blocks; ++n) {
      plan.sealed.push_back({.name = source_name(kind_of_source(), n),
                             .sizes = sizes,
                             .read = mixes(site),
                             .last_reader = last_reader});
    }
    plan.open.push_back({.name = "stream", .sizes = sizes});
    if (mixes(site) && !ends_block(site)) {
      plan.open.push_back({.name = "partial sum", .sizes = sizes});
    }
    return plan;
  }

  std::vector<int> cuts() const override {
    std::vector<int> sites;
    for (int site = 2; site < shape_.sublayers; site += 2) {
      if (ends_block(site)) sites.push_back(site);
    }
    return sites;
  }

  at::Tensor running_state(const DepthState& state) const override {
    const at::Tensor& r_TD = state.open[kResidual];
    return state.pending.defined() ? at::add(r_TD, state.pending) : r_TD;
  }

 private:
  // Site 0 and the output have their norm only; without a gate it is undefined.
  struct Site {
    DepthQuery query;
    at::Tensor gate;  // a_l [1]
    at::Tensor input_norm;
  };

  // What the sites of a group share: the sources as they read them, and phase 1.
  struct Cache : DepthCache {
    std::vector<DepthSource> sources;     // of `sealed`
    std::vector<EarlierSources> earlier;  // by site, from `first_site` on; none in the first group
    int first_site = 0;
    int end_site = 0;        // the group's end
    size_t num_earlier = 0;  // sources that phase 1 read
  };

  Site make_site(int l, ParameterRegistry& parameters) const {
    Site site;
    if (mixes(l)) {
      site.query.pseudo_query = parameters.add(l, "pseudo_query", ParameterKind::pseudo_query,
                                               {shape_.width}, Init::zeros());
      site.query.key_gain = add_norm(parameters, l, "key_norm", shape_);
      if (settings_.is_gated()) {
        site.gate = parameters.add(l, "mixture_gate", ParameterKind::mixing, {1},
                                   Init::constant(settings_.gate_start()));
      }
    }
    site.input_norm = add_norm(parameters, l, "input_norm", shape_);
    return site;
  }

  bool mixes(int site) const { return site > 0 && site < shape_.sublayers; }
  // Whether `site` sublayers fill whole blocks.
  bool ends_block(int site) const { return site % settings_.block_size == 0; }
  const char* kind_of_source() const { return settings_.block_size == 1 ? "sublayer" : "block"; }

  // Adds the pending output to the stream and to the block's part, which is sealed where its block
  // ends. Before the output nothing reads that any more.
  void fold(DepthState& state) const {
    if (!state.pending.defined()) return;
    const at::Tensor y_TD = std::move(state.pending);
    state.pending.reset();
    state.open[kResidual] = at::add(state.open[kResidual], y_TD);
    const bool has_partial = state.open.size() > kPartial;
    const at::Tensor partial_TD = has_partial ? at::add(state.open[kPartial], y_TD) : y_TD;
    if (has_partial) state.open.pop_back();
    if (!mixes(state.site)) return;
    (ends_block(state.site) ? state.sealed : state.open).push_back(partial_TD);
  }

  // The norm of a sum, which is shown as what the site mixed.
  SublayerInput normed_sum(const DepthState& state, const at::Tensor& a,
                           const at::Tensor& b) const {
    const at::Tensor& gain = sites_[state.site].input_norm;
    if (holds_weights(state)) {
      const at::Tensor h_TD = at::add(a, b);
      show_mixed(state, h_TD);
      return {.x = normalize(state, h_TD, gain, shape_.norm_eps)};
    }
    const auto [h_TD, x_TD] = add_rms_norm(a, b, gain, shape_.norm_eps);
    show_mixed(state, h_TD);
    return {.x = x_TD};
  }

  SublayerInput read_stream(DepthState& state) const {
    fold(state);
    const at::Tensor& r_TD = state.open[kResidual];
    show_mixed(state, r_TD);
    return {.x = normalize(state, r_TD, sites_[state.site].input_norm, shape_.norm_eps)};
  }

  at::Tensor mix_in_two_phases(DepthState& state) const {
    if (ends_block(state.site)) fold(state);
    if (!state.cache) state.cache = std::make_unique<Cache>();
    Cache& cache = static_cast<Cache&>(*state.cache);
    take_up_sealed(state.sealed, cache.sources);
    if (state.site >= cache.end_site) begin_group(state.site, cache);

    SiteSources sources;
    sources.sources = &cache.sources;
    sources.first_recent = cache.num_earlier;
    if (!cache.earlier.empty()) sources.earlier = &cache.earlier[state.site - cache.first_site];
    if (state.open.size() > kPartial) sources.partial = state.open[kPartial];
    sources.pending = state.pending;
    const SiteInput mixture = depth_attention_phase_two(
        sources, sites_[state.site].query, shape_.norm_eps, /*norm_gain=*/{}, /*norm_eps=*/0);
    if (sources.earlier != nullptr) *sources.earlier = {};
    at::Tensor r_TD = state.open[kResidual];
    if (state.pending.defined()) r_TD = at::add(r_TD, state.pending);
    state.pending.reset();
    state.open = {r_TD};
    if (mixture.partial.defined()) state.open.push_back(mixture.partial);
    return mixture.x;
  }

  // Phase 1 of the sites from this one to its group's end, or to the stage's.
  void begin_group(int site, Cache& cache) const {
    const SiteGroup group = group_of_site(site, settings_.block_size, shape_.sublayers);
    cache.first_site = site;
    cache.end_site = static_cast<int>(std::min<int64_t>(group.end, shape_.sublayers));
    while (!sites_[cache.end_site - 1].input_norm.defined()) --cache.end_site;
    cache.earlier.clear();
    cache.num_earlier = group.num_earlier;
    if (group.num_earlier == 0) return;
    std::vector<DepthQuery> queries;
    for (int l = site; l < cache.end_site; ++l) queries.push_back(sites_[l].query);
    cache.earlier =
        depth_attention_phase_one(cache.sources, cache.num_earlier, queries, shape_.norm_eps);
  }

  at::Tensor mix_by_weights(DepthState& state) const {
    fold(state);
    with_slots(state.sealed);
    const std::vector<at::Tensor> sources = sources_of(state);
    return weighted_sum(sources, held(state, weights_of(state, sources)));
  }

  static std::vector<at::Tensor> sources_of(const DepthState& state) {
    std::vector<at::Tensor> sources = state.sealed;
    if (state.open.size() > kPartial) sources.push_back(state.open[kPartial]);
    return sources;
  }

  std::vector<std::string> source_names(int site) const {
    std::vector<std::string> names;
    for (int64_t n = 0; n <= site / settings_.block_size; ++n) {
      names.push_back(source_name(kind_of_source(), n));
    }
    if (!ends_block(site)) names.push_back("partial sum");
    return names;
  }

  // [N, T, 1]
  at::Tensor weights_of(const DepthState& state, const std::vector<at::Tensor>& sources) const {
    const DepthQuery& query = sites_[state.site].query;
    at::Tensor scores = depth_scores(
        sources, {.query = query.pseudo_query, .key_gain = query.key_gain, .eps = shape_.norm_eps});
    if (drops_source(state)) {
      scores = without_dropped(state, scores, source_names(state.site),
                               score_of_nothing(DepthWeighing::softmax));
    }
    return weigh_scores(scores, DepthWeighing::softmax);
  }

  void show(const DepthState& state) const {
    const at::NoGradGuard not_recording;
    show_weights(state, weights_of(state, sources_of(state)).squeeze(-1), source_names(state.site));
  }

  DeltaAttnResSettings settings_;
  MixerShape shape_;
  std::vector<Site> sites_;
};

// Depth attention in two phases, as Table 1 counts it, and the stream read and written.
double delta_attn_res_traffic(const DeltaAttnResSettings& settings, const MixerShape& shape) {
  const double L = shape.sublayers, S = static_cast<double>(settings.block_size);
  if (S > 1) return L / S / S + 7;
  const auto group = static_cast<double>(sites_in_group(1, shape.sublayers));
  return group + L / group + 2;
}

}  // namespace

double DeltaAttnResSettings::gate_start() const {
  return gate.word.empty() ? gate.number : 0;
}

void DeltaAttnResSettings::check(const MixerShape& shape) const {
  require_usage(block_size <= shape.sublayers,
                "model.depth_mixing.block_size: expected 1 to {} (sublayers; two a Transformer "
                "layer), got {}",
                shape.sublayers, block_size);
}

std::string DeltaAttnResSettings::formula(const MixerShape& /*shape*/) const {
  const char* b = block_size == 1 ? "v" : "b";
  return fmt::format(
      "h_l = r_l + {}sum_i softmax_i(w_l . (g_l * RMS({}_i))) {}_i over {}, r_{{l+1}} = r_l + "
      "f_l(norm(h_l))",
      is_gated() ? "a_l " : "", b, b, block_size == 1 ? "v_0 .. v_l" : "block sums b_i");
}

Mechanism delta_attn_res_mechanism() {
  return define_mechanism<DeltaAttnResSettings, DeltaAttnRes>(
      {.name = "delta_attn_res",
       .formula = DeltaAttnResSettings().formula({}),
       .start = "a = 0: equals residual",
       .source = "Delta Attention Residuals, arXiv 2605.18855",
       .traffic = "(S + N + 2)d, N = L/S groups of S sites; blocks of S: (N/S + 7)d",
       .details =
           "r_0 = v_0, r_{l+1} = r_l + y_l. b_0 = v_0; b_n is the sum of y_i for i = (n - 1) S to "
           "n S - 1, S = block_size. Sources of site l = 1 .. L - 1, in this order: b_0 .. b_n, n "
           "= l / S rounded down; then, where S does not divide l, the sum of y_i for i = n S to l "
           "- 1. With S = 1 they are v_0 .. v_l. h_l = r_l + a_l m_l, m_l = sum_s softmax_s(w_l . "
           "(g_l * RMS(s))) s over the sources s; with gate none h_l = r_l + m_l. Site 0 and the "
           "output have no sources: h_0 = v_0, h_L = r_L. x_l = norm(h_l), at the output too.",
       .roles = {input_norm_role(),
                 {"pseudo_query", "[d]: w_l, l = 1 .. L - 1"},
                 {"key_norm", "[d]: g_l, l = 1 .. L - 1"},
                 {"mixture_gate", "[1]: a_l, l = 1 .. L - 1"}}},
      delta_attn_res_traffic);
}

}  // namespace attnres
