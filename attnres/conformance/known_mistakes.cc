#include "attnres/conformance/known_mistakes.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "attnres/conformance/delta_mistakes.h"
#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/mechanisms/block_attn_res.h"

namespace attnres {
namespace {

struct Source {
  at::Tensor value;
  bool finished = true;  // a block, or the embedding; else the partial sum
};

bool norms_outputs(const AttnResSettings& settings) {
  return settings.block_summary == "rms";
}

// `sealed` are v_0 .. v_l: the embedding and every output. Each read starts anew from them.
class MistakenMixer : public ComposedMixer {
 public:
  MistakenMixer(Mistake mistake, const AttnResSettings& settings, const MixerShape& shape,
                const ParameterRegistry& parameters)
      : ComposedMixer(shape),
        mistake_(mistake),
        block_size_(settings.block_size),
        fixed_scale_(settings.fixed_score_scale(shape)),
        norms_outputs_(norms_outputs(settings)) {
    if (is(Mistake::block_size_in_layers)) block_size_ *= 2;
    for (int l = 0; l <= shape.sublayers; ++l) {
      const auto find = [&](const char* role) {
        const Parameter* parameter = parameters.find(l, role);
        return parameter == nullptr ? at::Tensor() : parameter->tensor;
      };
      sites_.push_back({find("input_norm"), find("pseudo_query"), find("value_query"),
                        find("key_norm"), find("log_score_scale")});
    }
  }

  DepthState start(const at::Tensor& embedding_TD) const override {
    return {.sealed = {embedding_TD}};
  }

  StatePlan plan(int site) const override { return plan_of_outputs(site, shape()); }

  SublayerInput read(DepthState& state) const override {
    const Site& site = sites_[state.site];
    const std::vector<at::Tensor> mixtures = mixtures_before(state);
    at::Tensor mixed = mix(state.sealed, &Site::pseudo_query, mixtures), of_values;
    if (site.value_query.defined()) {
      of_values = is(Mistake::value_query_left_out)
                      ? mixed
                      : mix(state.sealed, &Site::value_query, mixtures);
    }
    if (is(Mistake::mixtures_swapped) && of_values.defined()) std::swap(mixed, of_values);
    show_mixed(state, mixed);
    if (is(Mistake::last_slot_overwritten)) remember(state, mixed);
    SublayerInput input = {normalize(state, mixed, site.input_norm, shape().norm_eps)};
    if (of_values.defined()) {
      show_stream(state, "value", of_values);
      input.value = normalize(state, of_values, site.input_norm, shape().norm_eps);
    }
    return input;
  }

 private:
  // What is undefined, a site or mechanism does not have.
  struct Site {
    at::Tensor input_norm, pseudo_query, value_query, key_norm, log_score_scale;
  };
  using Query = at::Tensor Site::*;

  struct Mixtures : DepthCache {
    std::vector<at::Tensor> of_sites;
  };
  static std::vector<at::Tensor> mixtures_before(const DepthState& state) {
    return state.cache ? static_cast<const Mixtures&>(*state.cache).of_sites
                       : std::vector<at::Tensor>();
  }
  static void remember(DepthState& state, const at::Tensor& mixed) {
    if (!state.cache) state.cache = std::make_unique<Mixtures>();
    static_cast<Mixtures&>(*state.cache).of_sites.push_back(mixed);
  }

  bool is(Mistake mistake) const { return mistake_ == mistake; }

  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    state.sealed.push_back(y_TD);
  }

  std::vector<Source> sources_of(const std::vector<at::Tensor>& values) const {
    const auto l = static_cast<int64_t>(values.size()) - 1;
    std::vector<Source> sources = {{values[0]}};
    if (is(Mistake::embedding_as_two_sources)) sources.push_back({values[0]});
    const bool is_early = is(Mistake::early_blocks) && block_size_ > 2;
    for (int64_t begin = 0, size = is_early ? block_size_ - 2 : block_size_; begin < l;
         begin += size, size = block_size_) {
      const int64_t end = std::min(begin + size, l);
      const bool finished = end == begin + size;
      Source block = {block_of(values, begin, end, finished), finished};
      const bool with_embedding = begin == 0 && is(Mistake::embedding_in_first_block);
      if (with_embedding) block.value = block.value + values[0];
      if (block.finished && is(Mistake::detached_blocks)) block.value = block.value.detach();
      const bool dropped =
          !block.finished && l == shape().sublayers && is(Mistake::short_block_dropped);
      if (!dropped) sources.push_back(block);
    }
    const bool with_zeros =
        (is(Mistake::zero_partial_sum) && l > 0) || is(Mistake::zero_partial_sum_at_site_0);
    if (with_zeros && l % block_size_ == 0) sources.push_back({at::zeros_like(values[0]), false});
    return sources;
  }

  // y_first + .. + y_{last-1}, `values` being v_0 and these.
  static at::Tensor sum_of(const std::vector<at::Tensor>& values, int64_t first, int64_t last) {
    at::Tensor sum = values[first + 1];
    for (int64_t i = first + 2; i <= last; ++i) sum = sum + values[i];
    return sum;
  }

  // The same, as the setting has it of a block.
  at::Tensor block_of(const std::vector<at::Tensor>& values, int64_t first, int64_t last,
                      bool finished) const {
    const at::Tensor sum = sum_of(values, first, last);
    const bool is_normed = finished || is(Mistake::partial_sum_normed);
    if (!norms_outputs_ || !is_normed || is(Mistake::summary_left_out)) return sum;
    if (is(Mistake::rms_of_sum)) return sum / rms(sum);
    std::vector<at::Tensor> normed = {values[0]};
    for (size_t i = 1; i < values.size(); ++i) normed.push_back(values[i] / rms(values[i]));
    return sum_of(normed, first, last);
  }

  // The right sources of site l, as what else is kept of a block than its own sum changes them.
  std::vector<Source> sources_of_bank(const std::vector<at::Tensor>& values) const {
    const auto l = static_cast<int64_t>(values.size()) - 1;
    std::vector<Source> bank = {{values[0]}};
    const bool recursive = is(Mistake::recursive_blocks) || is(Mistake::recursive_partial_too);
    const bool with_embedding = is(Mistake::cumulative_with_embedding);
    for (int64_t begin = 0; begin < l; begin += block_size_) {
      const int64_t end = std::min(begin + block_size_, l);
      const bool finished = end == begin + block_size_;
      const at::Tensor own = block_of(values, begin, end, finished),
                       so_far = sum_of(values, 0, end);
      at::Tensor value = own;
      if (recursive && (finished || is(Mistake::recursive_partial_too))) {
        value = values[0] + so_far - bank.back().value;
      }
      if (is(Mistake::cumulative_blocks)) value = so_far;
      if (with_embedding) value = values[0] + so_far;
      if (finished && is(Mistake::cumulative_finished_blocks)) value = bank.back().value + own;
      bank.push_back({value, finished});
    }
    return bank;
  }

  // The same, as what is written over a slot of the bank changes them.
  std::vector<Source> overwritten(std::vector<Source> bank, const std::vector<at::Tensor>& values,
                                  const std::vector<at::Tensor>& mixtures) const {
    const auto l = static_cast<int64_t>(values.size()) - 1;
    const int64_t blocks = l / block_size_;  // finished
    if (is(Mistake::newest_block_only) && blocks > 1) {
      bank.erase(bank.begin() + 1, bank.begin() + blocks);
    }
    if (is(Mistake::embedding_slot_overwritten) && blocks > 0) bank.erase(bank.begin());
    if (is(Mistake::embedding_summed_in_place) && l > 0) {
      bank[0].value = values[0] + sum_of(values, 0, std::min(block_size_, l));
    }
    // From the site after the one that sealed the last block on.
    const int64_t last_sealed = (shape().sublayers - 1) / block_size_ * block_size_;
    if (is(Mistake::last_slot_overwritten) && last_sealed > 0 && l > last_sealed + 1) {
      bank[last_sealed / block_size_].value = mixtures.at(l - 1);
    }
    return bank;
  }

  // h_l from v_0 .. v_l, by this query of the site.
  at::Tensor mix(const std::vector<at::Tensor>& values, Query query,
                 const std::vector<at::Tensor>& mixtures = {}) const {
    const auto l = static_cast<int>(values.size()) - 1;
    const std::vector<Source> sources =
        mistake_ < Mistake::cumulative_blocks
            ? sources_of(values)
            : overwritten(sources_of_bank(values), values, mixtures);
    if (is(Mistake::prefix_sum_for_mixture)) return sources.back().value;
    if (is(Mistake::stream_for_mixture)) return at::stack(values).sum(0);
    if (l == shape().sublayers) {
      if (is(Mistake::output_is_last_output)) return values.back();
      if (is(Mistake::output_is_residual)) {
        return mix({values.begin(), values.end() - 1}, query) + values.back();
      }
      if (is(Mistake::output_is_sum)) return at::stack(values).sum(0);
      if (is(Mistake::output_is_last_partial)) return sources.back().value;
    }
    if (sources.size() == 1) return sources[0].value;
    std::vector<at::Tensor> scores;
    for (const Source& source : sources) scores.push_back(score(l, source, query));
    const at::Tensor weights = at::softmax(at::stack(scores), 0);
    at::Tensor mixed = at::zeros_like(values[0]);
    for (size_t i = 0; i < sources.size(); ++i) {
      mixed = mixed + weights[i] * value_of(l, sources[i].value);
    }
    return mixed;
  }

  at::Tensor rms(const at::Tensor& v) const {
    return (v.square().mean(-1, /*keepdim=*/true) + shape().norm_eps).sqrt();
  }

  // [T, 1]; of site 0, which has no query, zeros.
  at::Tensor score(int l, const Source& source, Query query) const {
    const at::Tensor& v = source.value;
    if (l == 0) return at::zeros_like(v).sum(-1, /*keepdim=*/true);
    const bool l2 = is(Mistake::l2_norm);
    const at::Tensor norm = l2 ? v.norm(2, -1, /*keepdim=*/true).clamp_min(1e-12) : rms(v);
    const bool scaled =
        is(Mistake::scaled_scores) ||
        is(source.finished ? Mistake::scaled_blocks_only : Mistake::scaled_partial_only);
    const double scale = scaled ? 1 / std::sqrt(static_cast<double>(shape().width)) : 1;
    return scale * (folded(sites_[l], query) * v / norm).sum(-1, /*keepdim=*/true);
  }

  // c w * g
  at::Tensor folded(const Site& site, Query query) const {
    const at::Tensor w = scaled(site, site.*query);
    if (is(Mistake::folded_query_rounded)) return rounded(w * site.key_norm);
    if (is(Mistake::folded_factors_rounded)) return rounded(rounded(w) * rounded(site.key_norm));
    return w * site.key_norm;
  }
  at::Tensor scaled(const Site& site, const at::Tensor& w) const {
    if (is(Mistake::scale_left_out)) return w;
    const at::Tensor& s = site.log_score_scale;
    if (!s.defined()) return fixed_scale_ * w;
    return (is(Mistake::scale_not_exponential) ? s : s.exp()) * w;
  }

  // To bfloat16; to a gradient, as if it were not.
  static at::Tensor rounded(const at::Tensor& x) {
    const at::Tensor exact = x.detach();
    return x + (exact.to(at::kBFloat16).to(exact.dtype()) - exact);
  }

  at::Tensor value_of(int l, const at::Tensor& v) const {
    if (l == 0) return v;
    if (is(Mistake::values_normalized)) return v / rms(v);
    if (is(Mistake::values_are_keys)) return sites_[l].key_norm * v / rms(v);
    return v;
  }

  Mistake mistake_;
  int64_t block_size_;
  double fixed_scale_;
  bool norms_outputs_;
  std::vector<Site> sites_;
};

constexpr KnownMistake kKnownMistakes[] = {
    {Mistake::embedding_in_first_block, "embedding_in_first_block",
     "the embedding counts twice: start the first block's partial sum without it, it is b_0"},
    {Mistake::embedding_as_two_sources, "embedding_as_two_sources",
     "the embedding counts twice: it stands among the sources once, as b_0"},
    {Mistake::zero_partial_sum, "zero_partial_sum",
     "a block's first sublayer has a partial sum of zeros as a source: leave it out"},
    {Mistake::zero_partial_sum_at_site_0, "zero_partial_sum_at_site_0",
     "a block's first sublayer, site 0 too, has a partial sum of zeros as a source: leave it "
     "out"},
    {Mistake::block_size_in_layers, "block_size_in_layers",
     "the block size counts Transformer layers: it counts sublayers, two a Transformer layer"},
    {Mistake::early_blocks, "early_blocks",
     "blocks end a Transformer layer early, the first after S - 2 sublayers: each has S of them, "
     "the "
     "first too"},
    {Mistake::scaled_scores, "scaled_scores",
     "scores are divided by sqrt(d): depth attention has no such factor"},
    {Mistake::l2_norm, "l2_norm",
     "keys have L2 norm 1: divide by sqrt(mean(v^2) + eps), not by the L2 norm"},
    {Mistake::scaled_blocks_only, "scaled_blocks_only",
     "phase 1 divides scores by sqrt(d), phase 2 does not: neither may"},
    {Mistake::scaled_partial_only, "scaled_partial_only",
     "phase 2 divides scores by sqrt(d), phase 1 does not: neither may"},
    {Mistake::short_block_dropped, "short_block_dropped",
     "the output leaves out a short last block: it is a source, by its final partial sum"},
    {Mistake::output_is_last_output, "output_is_last_output",
     "no final aggregation, the output is the last sublayer's: it attends to all blocks"},
    {Mistake::output_is_residual, "output_is_residual",
     "no final aggregation, the output is the last sublayer's input plus its output: it attends "
     "to all blocks"},
    {Mistake::output_is_sum, "output_is_sum",
     "no final aggregation, the output is the sum of all sources: it attends to all blocks"},
    {Mistake::output_is_last_partial, "output_is_last_partial",
     "the final aggregation is over the last partial sum only: it attends to all blocks"},
    {Mistake::detached_blocks, "detached_blocks",
     "block representations are detached: gradients flow through finished blocks too"},
    {Mistake::folded_query_rounded, "folded_query_rounded",
     "the product w * g is rounded to bfloat16: fold in float32, and keep it there"},
    {Mistake::folded_factors_rounded, "folded_factors_rounded",
     "w and g are rounded to bfloat16, and so is their product: fold in float32, and keep it "
     "there"},
    {Mistake::values_normalized, "values_normalized",
     "values are RMS(v): only keys are normalised, values are the sources as they are"},
    {Mistake::values_are_keys, "values_are_keys",
     "values are g * RMS(v), the keys: values are the sources as they are"},
    {Mistake::prefix_sum_for_mixture, "prefix_sum_for_mixture",
     "sublayers read the running sum of the newest block: they read the mixture over all blocks "
     "and that sum"},
    {Mistake::stream_for_mixture, "stream_for_mixture",
     "sublayers read the sum of all outputs, a residual stream: they read the mixture over the "
     "sources"},
    {Mistake::cumulative_blocks, "cumulative_blocks",
     "blocks are cumulative: begin the sum anew when a block is finished, b_n has the outputs of "
     "block n alone"},
    {Mistake::cumulative_with_embedding, "cumulative_with_embedding",
     "blocks are cumulative, the embedding in all of them: sources are the residual stream at "
     "block ends; b_n has the outputs of block n alone"},
    {Mistake::cumulative_finished_blocks, "cumulative_finished_blocks",
     "a finished block is added to the one before it: b_n has the outputs of block n alone"},
    {Mistake::recursive_blocks, "recursive_blocks",
     "a block is the residual stream less the block before it: take the stream at the block's "
     "end "
     "less the stream at its beginning"},
    {Mistake::recursive_partial_too, "recursive_partial_too",
     "a block and the partial sum are the residual stream less the block before: take the stream "
     "less what it was at the block's beginning"},
    {Mistake::last_slot_overwritten, "last_slot_overwritten",
     "mixtures are written over the last finished block: once it is sealed, give them memory of "
     "their own"},
    {Mistake::newest_block_only, "newest_block_only",
     "a finished block overwrites the one before it: all blocks stay sources"},
    {Mistake::embedding_slot_overwritten, "embedding_slot_overwritten",
     "the first finished block overwrites the embedding: b_0 stays a source, b_1 is the next"},
    {Mistake::embedding_summed_in_place, "embedding_summed_in_place",
     "the first block's outputs are added to the embedding in place: b_0 is the embedding alone"},
};

constexpr KnownMistake kOfScales[] = {
    {Mistake::scale_left_out, "scale_left_out",
     "scores have no factor: score_scale multiplies every one of them"},
};
constexpr KnownMistake kOfLearnedScales[] = {
    {Mistake::scale_not_exponential, "scale_not_exponential",
     "scores are multiplied by log_score_scale: their factor is its exponential"},
};
constexpr KnownMistake kOfSummaries[] = {
    {Mistake::summary_left_out, "summary_left_out",
     "finished blocks are sums of outputs: with block_summary rms, of their RMS"},
    {Mistake::rms_of_sum, "rms_of_sum",
     "finished blocks are the RMS of their sum: norm each output, then add"},
    {Mistake::partial_sum_normed, "partial_sum_normed",
     "the newest block's sum is one of RMS too: until the block is finished, outputs are added as "
     "they are"},
};
constexpr KnownMistake kOfValueQueries[] = {
    {Mistake::value_query_left_out, "value_query_left_out",
     "values read what queries and keys read: they read the mixture of value_query"},
    {Mistake::mixtures_swapped, "mixtures_swapped",
     "queries and keys read the mixture of value_query, values that of pseudo_query: exchange "
     "them"},
};

}  // namespace

std::span<const KnownMistake> known_mistakes() {
  return kKnownMistakes;
}

const KnownMistake& random_queries() {
  static constexpr KnownMistake mistake = {
      Mistake::random_queries, "random_queries",
      "pseudo-queries start at random numbers, as of a standard deviation of 0.02: they start at "
      "zero, where the mixture is the mean of the sources"};
  return mistake;
}

std::vector<KnownMistake> known_mistakes_of(const DepthMixing& mixing) {
  if (mixing.settings<DeltaAttnResSettings>() != nullptr) {
    return {delta_mistakes().begin(), delta_mistakes().end()};
  }
  std::vector<KnownMistake> all(std::begin(kKnownMistakes), std::end(kKnownMistakes));
  const auto add = [&](std::span<const KnownMistake> more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  const AttnResSettings& settings = *attn_res_settings(mixing);
  if (!(settings.score_scale == 1)) add(kOfScales);
  if (settings.learns_score_scale()) add(kOfLearnedScales);
  if (norms_outputs(settings)) add(kOfSummaries);
  if (settings.value_query) add(kOfValueQueries);
  return all;
}

bool has_known_mistakes(const DepthMixing& mixing, const MixerShape& shape) {
  if (mixing.settings<DeltaAttnResSettings>() != nullptr) return true;
  const AttnResSettings* settings = attn_res_settings(mixing);
  if (settings == nullptr) return false;
  AttnResSettings without = *settings;
  without.score_scale = 1;
  without.block_summary = AttnResSettings(shape).block_summary;
  without.value_query = false;
  return without.is_plain(shape);
}

MixerFactory mistaken_mixer(Mistake mistake) {
  return [mistake](const DepthMixing& mixing, const MixerShape& shape,
                   ParameterRegistry& parameters) -> std::unique_ptr<DepthMixer> {
    mixing.make_mixer(shape, parameters);
    const auto* delta = mixing.settings<DeltaAttnResSettings>();
    if (delta != nullptr) return make_mistaken_delta(mistake, *delta, shape, parameters);
    return std::make_unique<MistakenMixer>(mistake, *attn_res_settings(mixing), shape, parameters);
  };
}

}  // namespace attnres
