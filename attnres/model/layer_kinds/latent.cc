#include "attnres/layers/latent_attention.h"
#include "attnres/model/layer_kinds/layer_kinds.h"

namespace attnres {
namespace {

void resolve_latent(ModelConfig& config, const std::string& path) {
  config.settings<LatentAttentionSettings>().resolve(config.width, config.heads,
                                                     path + ".latent_attention");
}

RotaryFrequencies latent_frequencies(const ModelConfig& config) {
  const LatentAttentionSettings& settings = config.settings<LatentAttentionSettings>();
  if (!settings.rotary) return {};
  return scaled_frequencies(settings.shared_key_width, config.rope_theta, config.rope_scaling);
}

std::unique_ptr<Sublayer> make_latent(const ModelConfig& config, const LayerPlace& place,
                                      ParameterRegistry& parameters) {
  return std::make_unique<LatentAttention>(config.settings<LatentAttentionSettings>(), config.heads,
                                           place, parameters, latent_frequencies(config));
}

}  // namespace

LayerKind latent_kind() {
  return {
      .name = kLatent,
      .keys = {"heads", "latent_attention", "rope_theta", "rope_scaling"},
      .settings = settings_under<LatentAttentionSettings>(
          "latent_attention", "of multi-head latent attention, \"latent\""),
      .missing = "latent attention",
      .is_in = [](const ModelConfig& config) { return config.has_attention(kLatent); },
      .resolve = resolve_latent,
      .make = make_latent,
      .shared_out = [](const ModelConfig& config) -> NumbersByKey {
        return {{"heads", config.heads}};
      },
      .hugging_face = weights_in(
          "self_attn.", {"q_proj", "q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa",
                         "kv_a_layernorm", "kv_b_proj", "g_proj", "o_proj"})};
}

}  // namespace attnres
