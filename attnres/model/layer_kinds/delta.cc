#include <fmt/core.h>

#include "attnres/layers/delta_attention.h"
#include "attnres/model/layer_kinds/layer_kinds.h"

namespace attnres {
namespace {

void resolve_delta(ModelConfig& config, const std::string& path) {
  config.settings<DeltaAttentionSettings>().resolve(config.width, config.heads,
                                                    path + ".delta_attention");
}

std::unique_ptr<Sublayer> make_delta(const ModelConfig& config, const LayerPlace& place,
                                     ParameterRegistry& parameters) {
  return std::make_unique<DeltaAttention>(config.settings<DeltaAttentionSettings>(), place,
                                          parameters);
}

HuggingFaceNames delta_in_hugging_face() {
  HuggingFaceNames names = weights_in(
      "self_attn.", {"q_proj", "k_proj", "v_proj", "q_conv1d", "k_conv1d", "v_conv1d", "f_a_proj",
                     "f_b_proj", "b_proj", "g_a_proj", "g_b_proj", "g_proj", "o_norm", "o_proj"});
  for (const char* role : {"A_log", "dt_bias"}) names[role] = fmt::format("self_attn.{}", role);
  return names;
}

}  // namespace

LayerKind delta_kind() {
  return {.name = kDelta,
          .keys = {"delta_attention"},
          .settings = settings_under<DeltaAttentionSettings>("delta_attention",
                                                             "of Kimi Delta Attention, \"delta\""),
          .missing = "delta attention",
          .is_in = [](const ModelConfig& config) { return config.has_attention(kDelta); },
          .resolve = resolve_delta,
          .make = make_delta,
          .shared_out = [](const ModelConfig& config) -> NumbersByKey {
            return {{"delta_attention.heads", config.settings<DeltaAttentionSettings>().heads}};
          },
          .hugging_face = delta_in_hugging_face()};
}

}  // namespace attnres
