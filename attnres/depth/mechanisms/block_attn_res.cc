#include "attnres/depth/mechanisms/block_attn_res.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/depth/site_groups.h"
#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/depth_attention/two_phase.h"
#include "attnres/ops/depth_scores/depth_scores.h"
#include "attnres/ops/gradient_slot.h"
#include "attnres/support/format.h"
#include "attnres/support/setting_words.h"

namespace attnres {
namespace {

constexpr const char *kLearned = "learned", *kInputDependent = "input_dependent", *kNone = "none";
constexpr const char* kRms = "rms";                // a block's summary
constexpr const char* kRootOfWidth = "1/sqrt(d)";  // c
constexpr const char *kSoftmax = "softmax", *kSigmoid = "sigmoid", *kFactorised = "factorised";

DepthWeighing weighing_of(const AttnResSettings& settings) {
  if (settings.weights == kSigmoid) return DepthWeighing::sigmoid;
  return settings.weights == kFactorised ? DepthWeighing::factorised : DepthWeighing::softmax;
}

// Whether the fused operation computes this arm.
bool is_fused(const AttnResSettings& settings) {
  return settings.query == kLearned && settings.weights == kSoftmax && settings.key_norm &&
         settings.heads == 1;
}

// Whether it does so in two phases: every site has to read every source.
bool serves_two_phase(const AttnResSettings& settings, const MixerShape& shape) {
  return is_fused(settings) && settings.window >= shape.sublayers;
}

// That site `l` reads: the embedding, blocks, and the partial sum inside a block.
int64_t num_sources(const AttnResSettings& settings, int l) {
  return 1 + std::min((l + settings.block_size - 1) / settings.block_size, settings.window);
}

class BlockAttnRes : public DepthMixer {
 public:
  BlockAttnRes(const AttnResSettings& settings, const MixerShape& shape,
               ParameterRegistry& parameters)
      : settings_(settings), shape_(shape), fixed_scale_(settings.fixed_score_scale(shape)) {
    for (int l = 0; l <= shape.sublayers; ++l) {
      sites_.push_back(make_site(l, parameters));
    }
    if (norms_outputs()) {
      const auto options = at::TensorOptions(parameters.device());
      unit_gain_ = at::ones({shape.width}, options.dtype(parameters.precision().parameters));
    }
  }

  SublayerNeeds needs(int site) const override { return {.separate_value = reads_values(site)}; }

  DepthState start(const at::Tensor& embedding_TD) const override {
    return {.sealed = {embedding_TD}};
  }

  SublayerInput read(DepthState& state) const override {
    if (state.pending.defined() && ends_block(state.site)) fold(state);
    const bool with_partial = has_partial(state) || state.pending.defined();
    const bool has_choice = state.sealed.size() + (with_partial ? 1 : 0) > 1;
    const bool two_phase =
        has_choice && !needs_weights(state) && serves_two_phase(settings_, shape_);
    if (!two_phase) return read_single_pass(state);
    SublayerInput input = read_two_phase(state);
    if (state.analysis != nullptr) {
      // The kernels keep no mixed inputs: they are computed again.
      const at::NoGradGuard not_recording;
      const std::vector<at::Tensor> sources = sources_of(state);
      show(state, sources, mixed_of(state, sources));
    }
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
    const int64_t blocks = site / settings_.block_size;
    for (int64_t n = 0; n <= blocks; ++n) {
      plan.sealed.push_back({.name = source_name(kind_of_source(), n),
                             .sizes = sizes,
                             .read = n == 0 || n >= first_in_window(site),
                             .last_reader = last_reader(n)});
    }
    if (keeps_mixed() && site > 0) plan.open.push_back({.name = "mixed input", .sizes = sizes});
    if (!ends_block(site)) {
      plan.open.push_back({.name = "partial sum", .sizes = sizes});
      if (leaves_normed_sum(site)) {
        plan.open.push_back({.name = "sum of normed outputs", .sizes = sizes});
      }
    }
    return plan;
  }

  std::vector<int> cuts() const override {
    std::vector<int> sites;
    for (int site = 1; site < shape_.sublayers; ++site) {
      if (ends_block(site) && site % 2 == 0) sites.push_back(site);
    }
    return sites;
  }

  at::Tensor running_state(const DepthState& state) const override {
    if (state.pending.defined()) {
      return ends_block(state.site) ? block_with_pending(state) : partial_with_pending(state);
    }
    return has_partial(state) ? state.open[partial_at()] : state.sealed.back();
  }

 private:
  // What is undefined or empty, this site or arm does not have; site 0 has its norm only.
  struct Site {
    DepthQuery query;
    at::Tensor value_query;    // w'_l
    at::Tensor query_proj;     // W_l of an input-dependent query
    at::Tensor log_scale;      // [1], log c_l where it is learned
    at::Tensor mixing_logits;  // [N] where there is no query
    at::Tensor input_norm;
  };

  Site make_site(int l, ParameterRegistry& parameters) const {
    const int64_t d = shape_.width;
    const Init query =
        settings_.query_init == 0 ? Init::zeros() : Init::normal(settings_.query_init);
    Site site;
    if (l > 0 && settings_.query == kLearned) {
      site.query.pseudo_query =
          parameters.add(l, "pseudo_query", ParameterKind::pseudo_query, {d}, query);
    }
    if (reads_values(l)) {
      site.value_query = parameters.add(l, "value_query", ParameterKind::pseudo_query, {d}, query);
    }
    if (l > 0 && settings_.query == kInputDependent) {
      site.query_proj = parameters.add(l, "query_proj", ParameterKind::matrix, {d, d}, query);
    }
    if (l > 0 && settings_.query == kNone) {
      site.mixing_logits = parameters.add(l, "mixing_logits", ParameterKind::mixing,
                                          {num_sources(settings_, l)}, Init::zeros());
    } else if (l > 0 && settings_.key_norm) {
      site.query.key_gain = add_norm(parameters, l, "key_norm", shape_);
    }
    if (l > 0 && settings_.learns_score_scale()) {
      site.log_scale =
          parameters.add(l, "log_score_scale", ParameterKind::mixing, {1}, Init::zeros());
    }
    site.input_norm = add_norm(parameters, l, "input_norm", shape_);
    return site;
  }

  // Whether the weights themselves have to be there, which the fused operation keeps to itself.
  static bool needs_weights(const DepthState& state) {
    return holds_weights(state) || drops_source(state);
  }
  bool fused(const DepthState& state) const { return is_fused(settings_) && !needs_weights(state); }

  // Whether the site's values are of a mixture of their own.
  bool reads_values(int site) const {
    return settings_.value_query && site % 2 == 0 && site > 0 && site < shape_.sublayers;
  }

  // `open` holds the mixed input of the site before, for an input-dependent query; the partial sum,
  // when there is one; and after that the sum of normed outputs, where that is what its block will
  // leave.
  bool keeps_mixed() const { return settings_.query == kInputDependent; }
  bool norms_outputs() const { return settings_.block_summary == kRms; }
  // Whether the block that is open before `site`, or ends there, is not a short last one.
  bool leaves_normed_sum(int site) const {
    const int64_t S = settings_.block_size, end = (site + S - 1) / S * S;
    return norms_outputs() && end <= shape_.sublayers;
  }
  size_t partial_at() const { return keeps_mixed() ? 1 : 0; }
  bool has_partial(const DepthState& state) const { return state.open.size() > partial_at(); }

  // What a site reads in two phases.
  struct Mixture {
    DepthQuery query;
    EarlierSources earlier;  // none in the first group, and once it is read
  };

  // What the sites of a group share: the sources as they read them, and phase 1.
  struct Cache : DepthCache {
    std::vector<DepthSource> sources;  // of `sealed`
    std::vector<Mixture> mixtures;     // by site, from `first_site` on
    std::vector<Mixture> of_values;    // the same; without a query where a site has none
    int first_site = -1;
    int end_site = -1;       // the group's end
    size_t num_earlier = 0;  // sources that phase 1 read
  };

  // Whether `site` sublayers fill whole blocks.
  bool ends_block(int site) const { return site % settings_.block_size == 0; }

  const char* kind_of_source() const { return settings_.block_size == 1 ? "sublayer" : "block"; }

  // The first block that a site reads, or 1; every site reads the embedding.
  int64_t first_in_window(int site) const {
    const int64_t newest = (site + settings_.block_size - 1) / settings_.block_size;
    return std::max<int64_t>(newest - settings_.window + 1, 1);
  }
  // The last site that reads block n, or the embedding where n is 0.
  int last_reader(int64_t n) const {
    const int64_t L = shape_.sublayers, window = std::min(settings_.window, L);
    return static_cast<int>(n == 0 ? L : std::min(L, (n + window - 1) * settings_.block_size));
  }

  // The pending output with what the block's earlier ones left at this place of `open`, if any did.
  static at::Tensor added(const DepthState& state, size_t place, const at::Tensor& output) {
    return place < state.open.size() ? at::add(state.open[place], output) : output;
  }
  at::Tensor partial_with_pending(const DepthState& state) const {
    return added(state, partial_at(), state.pending);
  }
  // What the block leaves if it ends with the pending output.
  at::Tensor block_with_pending(const DepthState& state) const {
    if (!norms_outputs()) return partial_with_pending(state);
    return added(state, partial_at() + 1,
                 normalize(state, state.pending, unit_gain_, shape_.norm_eps));
  }
  // What stays open beside the partial sum when the pending output is in; undefined if nothing.
  at::Tensor normed_sum(const DepthState& state) const {
    if (!leaves_normed_sum(state.site)) return {};
    if (state.pending.defined()) return block_with_pending(state);
    return has_partial(state) ? state.open[partial_at() + 1] : at::Tensor();
  }

  void set_open(DepthState& state, const at::Tensor& partial, const at::Tensor& normed_sum) const {
    state.open.resize(partial_at());
    state.open.push_back(partial);
    if (normed_sum.defined()) state.open.push_back(normed_sum);
  }

  // Adds the pending output to what its block has so far, and seals that where the block ends.
  void fold(DepthState& state) const {
    if (!state.pending.defined()) return;
    if (ends_block(state.site)) {
      state.sealed.push_back(block_with_pending(state));
      state.open.resize(partial_at());
    } else {
      set_open(state, partial_with_pending(state), normed_sum(state));
    }
    state.pending.reset();
  }

  double input_norm_eps(size_t sources) const {
    if (settings_.norm_eps == "fixed") return shape_.norm_eps;
    return shape_.norm_eps / static_cast<double>(sources * sources);
  }

  SublayerInput read_two_phase(DepthState& state) const {
    if (!state.cache) state.cache = std::make_unique<Cache>();
    Cache& cache = static_cast<Cache&>(*state.cache);
    take_up_sealed(state.sealed, cache.sources);
    if (state.site >= cache.end_site) begin_group(state.site, cache);

    SiteSources sources = {.sources = &cache.sources,
                           .first_recent = cache.num_earlier,
                           .partial = {},
                           .pending = state.pending};
    if (has_partial(state)) sources.partial = state.open[partial_at()];
    const at::Tensor normed = normed_sum(state);
    const bool with_partial = sources.partial.defined() || sources.pending.defined();
    const double eps = input_norm_eps(state.sealed.size() + (with_partial ? 1 : 0));
    const auto read = [&](Mixture& mixture) {
      sources.earlier = mixture.earlier.output.defined() ? &mixture.earlier : nullptr;
      const SiteInput input = depth_attention_phase_two(sources, mixture.query, shape_.norm_eps,
                                                        sites_[state.site].input_norm, eps);
      mixture.earlier = {};
      sources.partial = input.partial;
      sources.pending.reset();
      return input.x;
    };
    const int in_group = state.site - cache.first_site;
    SublayerInput input = {.x = read(cache.mixtures[in_group])};
    if (reads_values(state.site)) input.value = read(cache.of_values[in_group]);
    state.pending.reset();
    if (with_partial) set_open(state, sources.partial, normed);
    return input;
  }

  // Phase 1 of the sites from this one to its group's end, or to the stage's, whose last query that
  // is.
  void begin_group(int site, Cache& cache) const {
    const SiteGroup group = group_of_site(site, settings_.block_size, shape_.sublayers);
    cache.first_site = site;
    cache.end_site = static_cast<int>(std::min<int64_t>(group.end, shape_.sublayers + 1));
    while (!sites_[cache.end_site - 1].input_norm.defined()) --cache.end_site;
    cache.mixtures.clear();
    cache.of_values.clear();
    for (int l = site; l < cache.end_site; ++l) {
      cache.mixtures.push_back({scaled_query(sites_[l], sites_[l].query.pseudo_query), {}});
      cache.of_values.push_back({scaled_query(sites_[l], sites_[l].value_query), {}});
    }
    cache.num_earlier = group.num_earlier;
    if (group.num_earlier > 0) read_earlier(cache);
  }

  // Phase 1, of all mixtures of the group.
  void read_earlier(Cache& cache) const {
    std::vector<DepthQuery> queries;
    std::vector<EarlierSources*> places;
    for (auto* mixtures : {&cache.mixtures, &cache.of_values}) {
      for (Mixture& mixture : *mixtures) {
        if (!mixture.query.pseudo_query.defined()) continue;
        queries.push_back(mixture.query);
        places.push_back(&mixture.earlier);
      }
    }
    std::vector<EarlierSources> earlier =
        depth_attention_phase_one(cache.sources, cache.num_earlier, queries, shape_.norm_eps);
    for (size_t i = 0; i < places.size(); ++i) *places[i] = std::move(earlier[i]);
  }

  // A query of the site, c w in the place of w.
  DepthQuery scaled_query(const Site& site, const at::Tensor& query) const {
    return {scaled(site, query), site.query.key_gain};
  }
  at::Tensor scaled(const Site& site, const at::Tensor& query) const {
    if (!query.defined()) return query;
    if (site.log_scale.defined()) return query * site.log_scale.exp();
    return fixed_scale_ == 1 ? query : query * fixed_scale_;
  }

  // The first, and the newest after it.
  template <class T>
  std::vector<T> in_window(std::vector<T> sources) const {
    const auto dropped = static_cast<int64_t>(sources.size()) - 1 - settings_.window;
    if (dropped > 0) sources.erase(sources.begin() + 1, sources.begin() + 1 + dropped);
    return sources;
  }

  std::vector<std::string> source_names(int site) const {
    std::vector<std::string> names;
    for (int64_t n = 0; n <= site / settings_.block_size; ++n) {
      names.push_back(source_name(kind_of_source(), n));
    }
    if (!ends_block(site)) names.push_back("partial sum");
    return in_window(std::move(names));
  }

  std::vector<at::Tensor> sources_of(const DepthState& state) const {
    std::vector<at::Tensor> sources = state.sealed;
    if (has_partial(state)) sources.push_back(state.open[partial_at()]);
    return in_window(std::move(sources));
  }

  // What the site compares its sources with: [d], or [T, d]; undefined where it does not.
  at::Tensor query_of(const DepthState& state) const {
    const Site& site = sites_[state.site];
    return site.query_proj.defined() ? wide_linear(state.open[0], site.query_proj)
                                     : site.query.pseudo_query;
  }

  // [N], or [N, T, H].
  at::Tensor scores_of(const DepthState& state, const std::vector<at::Tensor>& sources,
                       const at::Tensor& query) const {
    const Site& site = sites_[state.site];
    if (site.mixing_logits.defined()) return site.mixing_logits;
    return depth_scores(sources, {.query = scaled(site, query),
                                  .key_gain = site.query.key_gain,
                                  .eps = shape_.norm_eps,
                                  .heads = settings_.heads,
                                  .weighing = weighing_of(settings_)});
  }

  // Depth weights of sources of one shape.
  at::Tensor weights_of(const DepthState& state, const std::vector<at::Tensor>& sources,
                        const at::Tensor& query) const {
    const DepthWeighing weighing = weighing_of(settings_);
    at::Tensor scores = scores_of(state, sources, query);
    if (drops_source(state)) {
      scores = without_dropped(state, scores, source_names(state.site), score_of_nothing(weighing));
    }
    return weigh_scores(scores, weighing);
  }

  at::Tensor mix(const DepthState& state, const std::vector<at::Tensor>& sources,
                 const at::Tensor& query) const {
    if (sources.size() == 1) return sources[0];
    if (!fused(state)) return weighted_sum(sources, held(state, weights_of(state, sources, query)));
    const Site& site = sites_[state.site];
    return depth_attention(sources, scaled(site, query), site.query.key_gain, shape_.norm_eps);
  }

  // h_l, and h'_l where the site's values have a mixture of their own.
  struct Mixed {
    at::Tensor h, of_values;
  };
  Mixed mixed_of(const DepthState& state, const std::vector<at::Tensor>& sources) const {
    Mixed mixed = {mix(state, sources, query_of(state)), {}};
    if (reads_values(state.site)) {
      mixed.of_values = mix(state, sources, sites_[state.site].value_query);
    }
    return mixed;
  }

  SublayerInput read_single_pass(DepthState& state) const {
    fold(state);
    with_slots(state.sealed);
    std::vector<at::Tensor> sources = sources_of(state);
    with_slots(sources);
    const Mixed mixed = mixed_of(state, sources);
    if (state.analysis != nullptr) show(state, sources, mixed);
    if (keeps_mixed() && state.site < shape_.sublayers) {
      if (state.open.empty()) state.open.emplace_back();
      state.open[0] = mixed.h;
    }
    const auto normed = [&](const at::Tensor& h) {
      return normalize(state, h, sites_[state.site].input_norm, input_norm_eps(sources.size()));
    };
    SublayerInput input = {.x = normed(mixed.h)};
    if (mixed.of_values.defined()) input.value = normed(mixed.of_values);
    return input;
  }

  // What this site reads of its sources.
  void show(const DepthState& state, const std::vector<at::Tensor>& sources,
            const Mixed& mixed) const {
    show_mixed(state, mixed.h);
    if (mixed.of_values.defined()) show_stream(state, "value", mixed.of_values);
    if (settings_.weights == kSigmoid) return;
    const at::NoGradGuard not_recording;
    at::Tensor weights_NT =
        at::ones({1, sources[0].size(0)}, sources[0].options().requires_grad(false));
    if (sources.size() > 1) {
      const at::Tensor weights = weights_of(state, sources, query_of(state));
      weights_NT = weights.dim() == 1 ? weights.unsqueeze(1) * weights_NT : weights.mean(-1);
    }
    show_weights(state, weights_NT, source_names(state.site));
  }

  AttnResSettings settings_;
  MixerShape shape_;
  double fixed_scale_;
  at::Tensor unit_gain_;  // where outputs are normed
  std::vector<Site> sites_;
};

// Table 1 where the two-phase schedule serves the arm; else a pass over all sources at every site.
// A block's second sum costs a read of each output, and a read and a write of itself; the block's
// first output begins it with a write alone. At half of the sites a second mixture is read in phase
// 2: Block's reads and writes what phase 1 has for it, reads the partial sum and writes what it
// mixes.
double block_attn_res_traffic(const AttnResSettings& settings, const MixerShape& shape) {
  const double L = shape.sublayers, S = static_cast<double>(settings.block_size);
  const double of_summary = settings.block_summary == kRms ? 3 - 1 / S : 0;
  if (serves_two_phase(settings, shape)) {
    if (S > 1) return L / S / S + 5 + of_summary + (settings.value_query ? 2 : 0);
    const auto group = static_cast<double>(sites_in_group(1, shape.sublayers));
    return (settings.value_query ? 1.5 : 1) * group + L / group + of_summary;
  }
  double moved = 0;
  for (int l = 0; l < shape.sublayers; ++l) {
    const auto sources = static_cast<double>(num_sources(settings, l));
    const bool reads_values = settings.value_query && l > 0 && l % 2 == 0;
    moved += (reads_values ? 2 : 1) * (sources + 1) + (settings.block_size > 1 ? 2 : 0);
  }
  return moved / L + of_summary;
}

}  // namespace

AttnResSettings::AttnResSettings(const MixerShape& shape) : window(std::max(1, shape.sublayers)) {}

void AttnResSettings::check(const MixerShape& shape) const {
  require_usage(block_size <= shape.sublayers,
                "model.depth_mixing.block_size: expected 1 to {} (sublayers; two a Transformer "
                "layer), got {}",
                shape.sublayers, block_size);
  require_usage(shape.width % heads == 0,
                "model.depth_mixing.heads: expected a divisor of the width {}, got {}", shape.width,
                heads);
  require_usage(query != kNone || (key_norm && heads == 1),
                "model.depth_mixing.query: without a query there are no keys, and key_norm and "
                "heads have no effect: leave them out");
  require_usage(query != kNone || (query_init == 0 && weights != kFactorised),
                "model.depth_mixing.query: without a query there is nothing that query_init could "
                "start or a factorised kernel compare: leave them out");
  require_usage((query != kNone && weights != kFactorised) || score_scale == 1,
                "model.depth_mixing.score_scale: {} no factor changes: leave it out",
                query == kNone ? "without a query the scores are learned numbers, which"
                               : "factorised weights are scores over their sum, which");
  require_usage(!value_query || query == kLearned,
                "model.depth_mixing.value_query: it is a second learned pseudo-query, and query is "
                "{}: leave one of them out",
                query);
}

double AttnResSettings::fixed_score_scale(const MixerShape& shape) const {
  if (learns_score_scale()) return 1;
  if (score_scale.word.empty()) return score_scale.number;
  return 1 / std::sqrt(static_cast<double>(shape.width));
}

bool AttnResSettings::is_plain(const MixerShape& shape) const {
  AttnResSettings plain(shape);
  plain.block_size = block_size;
  plain.query_init = query_init;
  return *this == plain;
}

std::string AttnResSettings::formula_over(const MixerShape& shape, const std::string& v,
                                          const std::string& which) const {
  const std::string key = key_norm ? fmt::format("g_l * RMS({}_i)", v) : v + "_i";
  const bool is_dependent = query == kInputDependent;
  std::string score =
      (is_dependent ? "(W_l h_{l-1}) . " : "w_l . ") + (key_norm ? "(" + key + ")" : key);
  if (learns_score_scale()) score = "exp(s_l) " + score;
  if (score_scale.word == kRootOfWidth) score += " / sqrt(d)";
  if (score_scale.word.empty() && score_scale.number != 1) {
    score = fmt::format("{} {}", score_scale.number, score);
  }
  if (query == kNone) score = "c_l,i";
  std::string text = fmt::format("h_l = sum_i {}({}) {}_i over {}",
                                 weights == kSigmoid ? "sg" : "softmax_i", score, v, which);
  if (weights == kFactorised) {
    text = fmt::format(
        "h_l = sum_i (phi_i / sum_j phi_j) {}_i over {}, phi_i = f({}) . f({}), f(x) = elu(x) + 1",
        v, which, is_dependent ? "W_l h_{l-1}" : "w_l", key);
  }
  if (window < shape.sublayers)
    text += fmt::format(", {}_0 and the newest {} of them only", v, window);
  if (heads > 1)
    text += fmt::format(
        "; a weight for each of {} groups of channels, of the dot product over the group; RMS is "
        "over all d",
        heads);
  if (value_query) text += "; values of attentions at l >= 2 the same with w'_l for w_l";
  if (norm_eps != "fixed") text += "; x_l = norm(h_l) with norm_eps / n^2, n the number of sources";
  return text;
}

BlockAttnResSettings::BlockAttnResSettings(const MixerShape& shape) : AttnResSettings(shape) {
  block_size = std::max(1, shape.sublayers / 8);
}

Json BlockAttnResSettings::respell(Json json, const MixerShape& shape) {
  constexpr const char* kBlocks = "num_blocks";
  std::vector<std::string> known = {kBlocks};
  const Json settings = write_config(BlockAttnResSettings(shape));
  for (const auto& [key, value] : settings.items()) known.push_back(key);
  for (const auto& [key, value] : json.items()) {
    require_usage(key == kBlocks || nearest_setting(key, known) != kBlocks,
                  "unknown key model.depth_mixing.{}: the nearest known key is "
                  "model.depth_mixing.{}",
                  one_line(key), kBlocks);
  }
  const auto blocks = json.find(kBlocks);
  if (blocks == json.end()) return json;
  require_usage(!json.contains("block_size"),
                "model.depth_mixing: block_size and num_blocks say the same; leave one out");
  const int64_t L = shape.sublayers;
  require_usage(blocks->is_number_integer() && *blocks >= 1 && *blocks <= L,
                "model.depth_mixing.num_blocks: expected 1 to {} (sublayers), got {}", L,
                blocks->dump());
  const auto count = blocks->get<int64_t>();
  const int64_t size = (L + count - 1) / count, made = (L + size - 1) / size;
  if (made != count) {  // so the size is 2 or more
    fail_usage(
        "model.depth_mixing.num_blocks: {} sublayers make {} blocks of {} or {} of {}, but not "
        "{}; choose one of them",
        L, made, size, (L + size - 2) / (size - 1), size - 1, count);
  }
  json.erase(kBlocks);
  json["block_size"] = size;
  return json;
}

std::optional<SettingOfAnArm> setting_of_an_arm(const BlockAttnResSettings& settings,
                                                const MixerShape& shape) {
  BlockAttnResSettings plain(shape);
  plain.block_size = settings.block_size;
  plain.query_init = settings.query_init;
  const Json of_plain = write_config(plain), given = write_config(settings);
  for (const auto& [key, value] : given.items()) {
    if (value != of_plain.at(key)) return {{key, value.dump(), of_plain.at(key).dump()}};
  }
  return {};
}

const AttnResSettings* attn_res_settings(const DepthMixing& mixing) {
  const auto* block = mixing.settings<BlockAttnResSettings>();
  return block != nullptr ? block : mixing.settings<AttnResSettings>();
}

std::vector<RoleText> attn_res_roles() {
  return {input_norm_role(),
          {"pseudo_query", "[d]: w_l, l >= 1"},
          {"value_query", "[d]: w'_l, even l from 2 to L - 2"},
          {"query_proj", "[d, d]: W_l, l >= 1; h_{l-1} = mixed.(l-1), before its norm"},
          {"mixing_logits", "[sources]: c_l, l >= 1, in the order of the sources"},
          {"key_norm", "[d]: g_l, l >= 1"},
          {"log_score_scale", "[1]: s_l, l >= 1; all scores of site l have the factor exp(s_l)"}};
}

Mechanism attn_res_mechanism(const MechanismText& text) {
  return define_mechanism<AttnResSettings, BlockAttnRes>(text, block_attn_res_traffic);
}

Mechanism block_attn_res_mechanism() {
  return define_mechanism<BlockAttnResSettings, BlockAttnRes>(
      {.name = "block_attn_res",
       .formula = "h_l = sum_i softmax_i(w_l . (g_l * RMS(b_i))) b_i over block sums b_i",
       .start = "w = 0, g = 1: the mean of the block sums",
       .source = "Block Attention Residuals, arXiv 2603.15031, Eqs. 5 and 6",
       .traffic = "(N/S + 5)d, N = L/S blocks",
       .details =
           "b_0 = v_0; b_n is the sum of y_i for i = (n - 1) S to n S - 1, S = block_size. "
           "Sources of site l, the output too, in this order: b_0 .. b_n, n = l / S rounded "
           "down; then, where S does not divide l, the sum of y_i for i = n S to l - 1. "
           "Site 0 reads v_0 and has its norm alone; x_l = norm(h_l). With heads, group n "
           "has channels n d/heads to (n + 1) d/heads - 1. With block_summary rms, b_n is "
           "the sum of RMS(y_i) for n >= 1, without a gain; b_0 and the sum where S does "
           "not divide l stay as they are. With value_query, mixed.value.l at even l from "
           "2 to L - 2 is h_l with w'_l for w_l, and input.value.l its norm with the gain of "
           "input.l.",
       .roles = attn_res_roles()},
      block_attn_res_traffic);
}

}  // namespace attnres
