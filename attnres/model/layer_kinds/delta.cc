#include <ATen/ATen.h>
#include <fmt/core.h>

#include "attnres/layers/delta_attention.h"
#include "attnres/model/layer_kinds/layer_kinds.h"
#include "attnres/support/error.h"

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

// A_log of -exp(A_log).
void read_decay(const at::Tensor& stored, const std::vector<at::Tensor>& A_log) {
  require(stored.lt(0).all().item<bool>(), "expected negative numbers, by which states decay");
  A_log[0].copy_(stored.neg().log().view_as(A_log[0]));
}

std::vector<GgufPart> delta_in_gguf(const ModelConfig& config, GgufArchitecture architecture) {
  using enum GgufPart::Storage;
  using Tensors = std::vector<at::Tensor>;
  const bool k3 = architecture == GgufArchitecture::kimi_k3;
  std::vector<GgufPart> parts;
  for (const char* of : {"q", "k", "v"}) {
    parts.push_back({fmt::format("attn_{}.weight", of), {fmt::format("{}_proj", of)}});
    parts.push_back({fmt::format("ssm_conv1d_{}.weight", of),
                     {fmt::format("{}_conv1d", of)},
                     exact,
                     [](const Tensors& kernels) {
                       return kernels[0].view({1, kernels[0].size(0), 1, kernels[0].size(-1)});
                     }});
  }
  parts.push_back({"ssm_f_a.weight", {"f_a_proj"}});
  parts.push_back({"ssm_f_b.weight", {"f_b_proj"}});
  parts.push_back({"ssm_dt.bias", {"dt_bias"}, exact});
  parts.push_back({.name = "ssm_a",
                   .roles = {"A_log"},
                   .storage = exact,
                   .make =
                       [k3](const Tensors& A_log) {
                         const at::Tensor decay = A_log[0].exp().neg();
                         return k3 ? decay : decay.view({1, 1, decay.size(0), 1});
                       },
                   .read = read_decay});
  parts.push_back({"ssm_beta.weight", {"b_proj"}});
  if (config.settings<DeltaAttentionSettings>().has_full_rank_gate()) {
    parts.push_back({"ssm_g.weight", {"g_proj"}});
  } else if (k3) {
    parts.push_back({"ssm_g.weight", {"g_b_proj", "g_a_proj"}, matrix, [](const Tensors& maps) {
                       return at::mm(maps[0], maps[1]);
                     }});
  } else {
    parts.push_back({"ssm_g_a.weight", {"g_a_proj"}});
    parts.push_back({"ssm_g_b.weight", {"g_b_proj"}});
  }
  parts.push_back({"ssm_norm.weight", {"o_norm"}, exact});
  parts.push_back({"attn_output.weight", {"o_proj"}});
  return parts;
}

}  // namespace

LayerKind delta_kind() {
  return {.name = kDelta,
          .keys = {"delta_attention"},
          .settings = settings_under<DeltaAttentionSettings>("delta_attention"),
          .missing = "delta attention",
          .is_in = [](const ModelConfig& config) { return config.has_attention(kDelta); },
          .resolve = resolve_delta,
          .make = make_delta,
          .shared_out = [](const ModelConfig& config) -> NumbersByKey {
            return {{"delta_attention.heads", config.settings<DeltaAttentionSettings>().heads}};
          },
          .hugging_face = delta_in_hugging_face(),
          .gguf = delta_in_gguf};
}

}  // namespace attnres
