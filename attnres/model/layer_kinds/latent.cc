#include <ATen/core/Tensor.h>

#include "attnres/layers/latent_attention.h"
#include "attnres/model/layer_kinds/layer_kinds.h"
#include "attnres/model/layer_kinds/paired_rows.h"

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

std::vector<GgufPart> latent_in_gguf(const ModelConfig& config, GgufArchitecture) {
  using enum GgufPart::Storage;
  using Tensors = std::vector<at::Tensor>;
  const LatentAttentionSettings& settings = config.settings<LatentAttentionSettings>();
  std::vector<GgufPart> parts;
  // A map whose last outputs, of each head, rotary positions may turn.
  const auto add_map = [&](const char* name, const char* role, int64_t of_heads, int64_t before) {
    parts.push_back(
        settings.rotary
            ? side_by_side_part(name, role, {of_heads, before, settings.shared_key_width / 2})
            : GgufPart{.name = name, .roles = {role}});
  };
  if (settings.q_rank > 0) {
    parts.push_back({"attn_q_a.weight", {"q_a_proj"}});
    parts.push_back({"attn_q_a_norm.weight", {"q_a_layernorm"}, exact});
    add_map("attn_q_b.weight", "q_b_proj", config.heads, settings.key_width);
  } else {
    add_map("attn_q.weight", "q_proj", config.heads, settings.key_width);
  }
  add_map("attn_kv_a_mqa.weight", "kv_a_proj_with_mqa", /*of_heads=*/1, settings.kv_rank);
  parts.push_back({"attn_kv_a_norm.weight", {"kv_a_layernorm"}, exact});
  const int64_t heads = config.heads, key = settings.key_width, value = settings.value_width;
  const auto of_head = [=](const Tensors& kv_b) {
    return kv_b[0].view({heads, key + value, kv_b[0].size(1)});
  };
  // Views of a head's rows, into which a file's are copied too.
  const auto add_view = [&](const char* name, const auto& view) {
    parts.push_back(
        {name, {"kv_b_proj"}, matrix, view, [=](const at::Tensor& stored, const Tensors& kv_b) {
           view(kv_b).copy_(stored);
         }});
  };
  add_view("attn_k_b.weight",
           [=](const Tensors& kv_b) { return of_head(kv_b).narrow(1, 0, key).transpose(1, 2); });
  add_view("attn_v_b.weight",
           [=](const Tensors& kv_b) { return of_head(kv_b).narrow(1, key, value); });
  if (settings.output_gate) parts.push_back({"attn_gate.weight", {"g_proj"}});
  parts.push_back({"attn_output.weight", {"o_proj"}});
  return parts;
}

}  // namespace

LayerKind latent_kind() {
  return {
      .name = kLatent,
      .keys = {"heads", "latent_attention", "rope_theta", "rope_scaling"},
      .settings = settings_under<LatentAttentionSettings>("latent_attention"),
      .missing = "latent attention",
      .is_in = [](const ModelConfig& config) { return config.has_attention(kLatent); },
      .resolve = resolve_latent,
      .make = make_latent,
      .shared_out = [](const ModelConfig& config) -> NumbersByKey {
        return {{"heads", config.heads}};
      },
      .hugging_face = weights_in(
          "self_attn.", {"q_proj", "q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa",
                         "kv_a_layernorm", "kv_b_proj", "g_proj", "o_proj"}),
      .gguf = latent_in_gguf};
}

}  // namespace attnres
