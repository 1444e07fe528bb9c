#include "attnres/formats/architectures.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>

#include "attnres/depth/mechanisms/block_attn_res.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// Both of Kimi's files need experts after the first dense layers, and shared ones.
bool has_kimi_layers(const ModelConfig& model) {
  return has_kimi_attention(model) && model.experts.count > 0 && model.experts.shared > 0;
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
  if (!model.is_residual() && layers_in_block(model) == 0) {
    return fmt::format(
        "model.depth_mixing is {}; Llama and Kimi Linear have plain residual "
        "connections, Kimi K3 plain block_attn_res",
        mixing.to_json().dump());
  }
  return "Block AttnRes, experts, delta and latent attention are known only of Kimi K3, where "
         "every layer has delta or latent attention, some have either, experts with shared ones "
         "follow the first dense layers, and model.activation.type is situ";
}

}  // namespace

bool has_llama_attention(const ModelConfig& model) {
  return !model.has_attention(kDelta) && !model.has_attention(kLatent);
}

bool has_kimi_attention(const ModelConfig& model) {
  return !model.has_attention(kGroupedQuery) && model.has_attention(kDelta) &&
         model.has_attention(kLatent);
}

bool is_without_k3_parts(const ModelConfig& model) {
  return model.is_residual() && model.delta_attention.gate_lower_bound == 0 &&
         !model.delta_attention.has_full_rank_gate() && !model.latent_attention.output_gate &&
         model.experts.latent_width == 0 && !model.activation.is_situ();
}

int64_t layers_in_block(const ModelConfig& model) {
  const auto* block = model.depth_mixing.settings<BlockAttnResSettings>();
  const bool is_whole = block != nullptr && block->block_size % 2 == 0;
  return is_whole && block->is_plain(model.mixer_shape()) ? block->block_size / 2 : 0;
}

FileLayout layout_of(const ModelConfig& model) {
  if (has_kimi_layers(model)) {
    if (is_without_k3_parts(model)) return FileLayout::kimi_linear;
    const bool is_k3_mixing = model.is_residual() || layers_in_block(model) > 0;
    return model.activation.is_situ() && is_k3_mixing ? FileLayout::kimi_k3 : FileLayout::attnres;
  }
  const bool is_llama = has_llama_attention(model) && model.experts.count == 0 &&
                        model.is_residual() && !model.activation.is_situ();
  return is_llama ? FileLayout::llama : FileLayout::attnres;
}

void require_public_layout(const ModelConfig& model) {
  if (layout_of(model) != FileLayout::attnres) return;
  fail(
      "no architecture that other programs have computes this model: {}; export it without "
      "--format huggingface, as model_type attnres",
      why_not_public(model));
}

}  // namespace attnres
