#include "attnres/depth/block_attn_res.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>

#include <nlohmann/json.hpp>

#include "attnres/layers/rms_norm.h"
#include "attnres/ops/depth_attention/depth_attention.h"
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
        site.pseudo_query = add("pseudo_query", ParameterKind::pseudo_query, Init::zeros());
        site.key_norm = add("key_norm", ParameterKind::norm_gain, Init::ones());
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
    settle(state);
    const Site& site = sites_[state.site];
    std::vector<at::Tensor> sources = state.sealed;
    sources.insert(sources.end(), state.open.begin(), state.open.end());
    const at::Tensor h_BTD = sources.size() == 1 ? sources[0]
                                                 : depth_attention(sources, site.pseudo_query,
                                                                   site.key_norm, shape_.norm_eps);
    if (trace != nullptr) {
      const at::NoGradGuard no_grad;
      trace->mixed = h_BTD.detach();
      trace->weights = weights(sources, site);
    }
    return {rms_norm(h_BTD, site.input_norm, input_norm_eps(sources.size()))};
  }

  void write(DepthState& state, SublayerOutput output) const override {
    state.pending = std::move(output.y);
    ++state.site;
  }

  // Adds the pending output to the partial sum, and seals it where its block ends.
  void settle(DepthState& state) const override {
    if (!state.pending.defined()) return;
    at::Tensor partial = state.open.empty() ? state.pending : at::add(state.open[0], state.pending);
    state.pending.reset();
    state.open.clear();
    (ends_block(state.site) ? state.sealed : state.open).push_back(partial);
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

  at::Tensor running_state(const DepthState& settled) const override {
    return settled.open.empty() ? settled.sealed.back() : settled.open[0];
  }

 private:
  struct Site {
    at::Tensor pseudo_query, key_norm;  // undefined at site 0
    at::Tensor input_norm;
  };

  // Whether `site` sublayers fill whole blocks.
  bool ends_block(int site) const { return site % settings_.block_size == 0; }

  double input_norm_eps(size_t sources) const {
    if (settings_.norm_eps == "fixed") return shape_.norm_eps;
    return shape_.norm_eps / static_cast<double>(sources * sources);
  }

  at::Tensor weights(const std::vector<at::Tensor>& sources, const Site& site) const {
    if (sources.size() == 1) {
      return at::ones({1, sources[0].size(0), sources[0].size(1)}, sources[0].options());
    }
    return depth_attention_weights(sources, site.pseudo_query, site.key_norm, shape_.norm_eps);
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
