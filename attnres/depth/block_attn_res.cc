#include "attnres/depth/block_attn_res.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/depth_attention/two_phase.h"
#include "attnres/ops/rms_norm/rms_norm.h"
#include "attnres/support/config.h"

namespace attnres {
namespace {

class BlockAttnRes : public DepthMixer {
 public:
  BlockAttnRes(const AttnResSettings& settings, const MixerShape& shape,
               ParameterRegistry& parameters)
      : settings_(settings), shape_(shape) {
    for (int l = 0; l <= shape.sublayers; ++l) {
      Site site;
      const auto add = [&](const char* role, ParameterKind kind, Init init) {
        return parameters.add(l, role, kind, {shape.width}, init);
      };
      if (l > 0) {
        site.query.pseudo_query = add("pseudo_query", ParameterKind::pseudo_query, Init::zeros());
        site.query.key_gain = add("key_norm", ParameterKind::norm_gain, Init::ones());
      }
      site.input_norm = add("input_norm", ParameterKind::norm_gain, Init::ones());
      sites_.push_back(site);
    }
  }

  DepthState start(const at::Tensor& embedding_BTD) const override {
    DepthState state;
    state.sealed = {embedding_BTD};
    return state;
  }

  SublayerInput read(DepthState& state, ReadTrace* trace) const override {
    if (state.pending.defined() && ends_block(state.site)) fold(state);
    const bool has_partial = !state.open.empty() || state.pending.defined();
    const size_t num_sources = state.sealed.size() + (has_partial ? 1 : 0);
    const bool two_phase = num_sources > 1 && can_fuse_depth_attention(state.sealed);
    if (!two_phase) fold(state);
    SublayerInput input = {two_phase ? read_two_phase(state) : read_single_pass(state)};
    if (trace != nullptr) look(state, *trace);
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

  std::vector<int> cuts() const override {
    std::vector<int> sites;
    for (int site = 1; site < shape_.sublayers; ++site) {
      if (ends_block(site) && site % 2 == 0) sites.push_back(site);
    }
    return sites;
  }

  std::vector<std::string> source_names(int site) const override {
    std::vector<std::string> names = {"embedding"};
    for (int64_t n = 1; n <= site / settings_.block_size; ++n) {
      names.push_back(fmt::format("{} {}", settings_.block_size == 1 ? "sublayer" : "block", n));
    }
    if (!ends_block(site)) names.push_back("partial sum");
    return names;
  }

  at::Tensor running_state(const DepthState& state) const override {
    if (state.open.empty()) return state.pending.defined() ? state.pending : state.sealed.back();
    return state.pending.defined() ? at::add(state.open[0], state.pending) : state.open[0];
  }

 private:
  struct Site {
    DepthQuery query;  // undefined at site 0
    at::Tensor input_norm;
  };

  // What the sites of a group share: the sources as they read them, and phase 1.
  struct Cache : DepthCache {
    std::vector<DepthSource> sources;     // of `sealed`
    std::vector<EarlierSources> earlier;  // by site, from `first_site` on; none in the first group
    int first_site = -1;
    int end_site = -1;       // the group's end
    size_t num_earlier = 0;  // sources that phase 1 read
  };

  // Whether `site` sublayers fill whole blocks.
  bool ends_block(int site) const { return site % settings_.block_size == 0; }

  // Adds the pending output to the partial sum, and seals it where its block ends.
  void fold(DepthState& state) const {
    if (!state.pending.defined()) return;
    at::Tensor partial = state.open.empty() ? state.pending : at::add(state.open[0], state.pending);
    state.pending.reset();
    state.open.clear();
    (ends_block(state.site) ? state.sealed : state.open).push_back(partial);
  }

  double input_norm_eps(size_t sources) const {
    if (settings_.norm_eps == "fixed") return shape_.norm_eps;
    return shape_.norm_eps / static_cast<double>(sources * sources);
  }

  // Sites in a group, which shares phase 1: those of a block, or of as many whole blocks as there
  // are sites in sqrt(L), where phases 1 and 2 together read least (Full: Appendix B).
  int64_t group_sites() const {
    const auto root = static_cast<int64_t>(std::sqrt(static_cast<double>(shape_.sublayers)));
    return std::max<int64_t>(1, root / settings_.block_size) * settings_.block_size;
  }

  at::Tensor read_two_phase(DepthState& state) const {
    if (!state.cache) state.cache = std::make_unique<Cache>();
    Cache& cache = static_cast<Cache&>(*state.cache);
    while (cache.sources.size() < state.sealed.size()) {
      cache.sources.emplace_back(state.sealed[cache.sources.size()]);
    }
    if (state.site >= cache.end_site) begin_group(state.site, cache);

    const Site& site = sites_[state.site];
    SiteSources sources;
    if (!cache.earlier.empty()) sources.earlier = &cache.earlier[state.site - cache.first_site];
    sources.sources = &cache.sources;
    sources.first_recent = cache.num_earlier;
    if (!state.open.empty()) sources.partial = state.open[0];
    sources.pending = state.pending;
    const bool has_partial = sources.partial.defined() || sources.pending.defined();
    SiteInput input =
        depth_attention_phase_two(sources, site.query, shape_.norm_eps, site.input_norm,
                                  input_norm_eps(state.sealed.size() + (has_partial ? 1 : 0)));
    if (sources.earlier != nullptr) *sources.earlier = {};
    state.pending.reset();
    if (has_partial) state.open = {input.partial};
    return input.x;
  }

  // Phase 1 of the sites from this one to its group's end. What it reads depends on the group only,
  // not on where in it a state was cut and taken up again.
  void begin_group(int site, Cache& cache) const {
    const int64_t group = site / group_sites(), begin = group * group_sites();
    cache.first_site = site;
    cache.end_site =
        static_cast<int>(std::min<int64_t>(begin + group_sites(), shape_.sublayers + 1));
    cache.earlier.clear();
    // Before the first group there is the embedding only, which needs no pass of its own.
    cache.num_earlier = group == 0 ? 0 : 1 + begin / settings_.block_size;
    if (group == 0) return;
    std::vector<DepthQuery> queries;
    for (int l = site; l < cache.end_site; ++l) queries.push_back(sites_[l].query);
    cache.earlier =
        depth_attention_phase_one(cache.sources, cache.num_earlier, queries, shape_.norm_eps);
  }

  static std::vector<at::Tensor> sources_of(const DepthState& state) {
    std::vector<at::Tensor> sources = state.sealed;
    sources.insert(sources.end(), state.open.begin(), state.open.end());
    return sources;
  }

  at::Tensor mix(const std::vector<at::Tensor>& sources, const Site& site) const {
    if (sources.size() == 1) return sources[0];
    return depth_attention(sources, site.query.pseudo_query, site.query.key_gain, shape_.norm_eps);
  }

  at::Tensor read_single_pass(const DepthState& state) const {
    const Site& site = sites_[state.site];
    const std::vector<at::Tensor> sources = sources_of(state);
    return rms_norm(mix(sources, site), site.input_norm, input_norm_eps(sources.size()));
  }

  // What this site read, computed again.
  void look(const DepthState& state, ReadTrace& trace) const {
    const at::NoGradGuard not_recording;
    const Site& site = sites_[state.site];
    const std::vector<at::Tensor> sources = sources_of(state);
    trace.mixed = mix(sources, site).detach();
    trace.weights =
        sources.size() == 1
            ? at::ones({1, sources[0].size(0), sources[0].size(1)}, sources[0].options())
            : depth_attention_weights(sources, site.query.pseudo_query, site.query.key_gain,
                                      shape_.norm_eps);
  }

  AttnResSettings settings_;
  MixerShape shape_;
  std::vector<Site> sites_;
};

// The recipe's view: here block_size is a key, and has to be given.
struct BlockSettings : AttnResSettings {
  BlockSettings() { block_size = 0; }

  template <class V>
  void visit(V& v) {
    v("block_size", block_size);
    v("norm_eps", norm_eps);
  }
};

}  // namespace

void check(const AttnResSettings& settings, const MixerShape& shape) {
  require_usage(settings.block_size >= 1 && settings.block_size <= shape.sublayers,
                "model.depth_mixing.block_size: expected 1 to {} (sublayers; two a Transformer "
                "layer), got {}",
                shape.sublayers, settings.block_size);
  require_usage(settings.norm_eps == "fixed" || settings.norm_eps == "per_source_count",
                "model.depth_mixing.norm_eps: expected fixed or per_source_count, got {}",
                settings.norm_eps);
}

std::unique_ptr<DepthMixer> make_attn_res_mixer(const AttnResSettings& settings,
                                                const MixerShape& shape,
                                                ParameterRegistry& parameters) {
  return std::make_unique<BlockAttnRes>(settings, shape, parameters);
}

Mechanism block_attn_res_mechanism() {
  const auto parse = [](const Json& json, const MixerShape& shape) {
    BlockSettings settings;
    read_config(json, "model.depth_mixing", settings);
    require_usage(json.contains("block_size"),
                  "model.depth_mixing.block_size: block_attn_res needs it, from 1 to {} sublayers; "
                  "about L/8 is usual",
                  shape.sublayers);
    check(settings, shape);
    return settings;
  };
  return {.name = "block_attn_res",
          .formula = "h_l = sum_i softmax_i(w_l . (g_l * RMS(b_i))) b_i over block sums b_i",
          .source = "Block Attention Residuals, arXiv 2603.15031, Eqs. 5 and 6",
          .resolve = [parse](const Json& json,
                             const MixerShape& shape) { return write_config(parse(json, shape)); },
          .make =
              [parse](const Json& json, const MixerShape& shape, ParameterRegistry& parameters) {
                return make_attn_res_mixer(parse(json, shape), shape, parameters);
              }};
}

}  // namespace attnres
