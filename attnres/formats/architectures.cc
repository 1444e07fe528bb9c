#include "attnres/formats/architectures.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "attnres/depth/mechanisms/block_attn_res.h"
#include "attnres/formats/llama_family.h"
#include "attnres/formats/llama_misfit.h"
#include "attnres/layers/attention.h"
#include "attnres/layers/delta_attention.h"
#include "attnres/layers/experts.h"
#include "attnres/layers/latent_attention.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// Both of Kimi's files need experts after the first dense layers, and shared ones.
bool has_kimi_layers(const ModelConfig& model) {
  const auto& latent = model.settings<LatentAttentionSettings>();
  const auto& experts = model.settings<ExpertsSettings>();
  return has_kimi_attention(model) && experts.count > 0 && experts.shared > 0 &&
         experts.has_plain_routing() && !has_gemma_parts(model) && !latent.rotary &&
         latent.score_scale == 0;
}

// Why it is none of the public ones, for people.
std::string why_not_public(const ModelConfig& model) {
  const DepthMixing& mixing = model.depth_mixing;
  const AttnResSettings* attn_res = attn_res_settings(mixing);
  const auto* block = mixing.settings<BlockAttnResSettings>();
  if (block != nullptr && block->block_size % 2 != 0) {
    return fmt::format(
        "model.depth_mixing.block_size is {} sublayers, but Kimi K3's blocks are whole Transformer "
        "layers, of two",
        block->block_size);
  }
  if (attn_res != nullptr && !attn_res->has_one_norm_eps()) {
    return "model.depth_mixing.norm_eps divides the eps of every site, but Kimi K3's files hold "
           "one (--approximate exports with one and says what that changes)";
  }
  if (block != nullptr) {
    if (const auto arm = setting_of_an_arm(*block, model.mixer_shape())) {
      return fmt::format("model.depth_mixing.{} is {}, but Kimi K3 has {}", arm->key, arm->value,
                         arm->of_plain);
    }
  }
  if (!model.is_residual() && layers_in_block(model) == 0) {
    return fmt::format(
        "model.depth_mixing is {}; Llama and Kimi Linear have plain residual "
        "connections, Kimi K3 plain block_attn_res",
        mixing.to_json().dump());
  }
  if (model.is_residual() && has_llama_attention(model) &&
      model.settings<ExpertsSettings>().count == 0) {
    return why_not_llama_family(model) +
           " (attnres knows Llama, Mistral, Qwen 2 and 3, SmolLM 3 and Gemma 3)";
  }
  return "Block AttnRes, experts, delta and latent attention are known only of Kimi K3, where "
         "every layer has delta or latent attention, some have either, experts with shared ones "
         "follow the first dense layers, and model.activation.type is situ";
}

std::optional<FileLayout> find_public_layout(const ModelConfig& model) {
  if (has_kimi_layers(model)) {
    if (is_without_k3_parts(model)) return FileLayout::kimi_linear;
    const bool is_k3_mixing = model.is_residual() || layers_in_block(model) > 0;
    if (model.activation.is_situ() && is_k3_mixing) return FileLayout::kimi_k3;
  }
  if (has_deepseek_layers(model)) return FileLayout::deepseek_v3;
  const std::string type = llama_family_type(model);
  if (type.empty()) return {};
  return type == "gemma3_text" ? FileLayout::gemma3 : FileLayout::llama;
}

}  // namespace

bool has_llama_attention(const ModelConfig& model) {
  return !model.has_attention(kDelta) && !model.has_attention(kLatent);
}

bool has_kimi_attention(const ModelConfig& model) {
  return !model.has_attention(kGroupedQuery) && model.has_attention(kDelta) &&
         model.has_attention(kLatent);
}

bool has_gemma_parts(const ModelConfig& model) {
  return model.output_norm || model.embedding_scale != 1 || model.activation.type == "gelu_tanh";
}

bool has_deepseek_layers(const ModelConfig& model) {
  const auto& latent = model.settings<LatentAttentionSettings>();
  const auto& experts = model.settings<ExpertsSettings>();
  return model.attention == std::vector<std::string>{kLatent} && latent.rotary &&
         !latent.output_gate && experts.count > 0 && experts.shared > 0 &&
         experts.latent_width == 0 && experts.has_plain_routing() && model.is_residual() &&
         model.activation.type == "silu" && !has_gemma_parts(model);
}

bool is_without_k3_parts(const ModelConfig& model) {
  const auto& delta = model.settings<DeltaAttentionSettings>();
  return model.is_residual() && delta.gate_lower_bound == 0 && !delta.has_full_rank_gate() &&
         !model.settings<LatentAttentionSettings>().output_gate &&
         model.settings<ExpertsSettings>().latent_width == 0 && model.activation.type == "silu";
}

int64_t layers_in_block(const ModelConfig& model) {
  const auto* block = model.depth_mixing.settings<BlockAttnResSettings>();
  const bool is_whole = block != nullptr && block->block_size % 2 == 0;
  return is_whole && block->is_plain(model.mixer_shape()) ? block->block_size / 2 : 0;
}

FileLayout public_layout(const ModelConfig& model) {
  const std::optional<FileLayout> found = find_public_layout(model);
  if (found) return *found;
  fail(
      "no architecture that other programs have computes this model: {}; export it without "
      "--format huggingface, as model_type attnres",
      why_not_public(model));
}

FileLayout layout_of(const ModelConfig& model) {
  const FileLayout layout = find_public_layout(model).value_or(FileLayout::attnres);
  return layout == FileLayout::gemma3 ? FileLayout::attnres : layout;
}

}  // namespace attnres
