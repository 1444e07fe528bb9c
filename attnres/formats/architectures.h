// Which of the architectures that other programs have is a model's. Every file format asks these
// rules, and adds what its readers do not compute.
#pragma once

#include <cstdint>

#include "attnres/model/config.h"

namespace attnres {

// Grouped-query attention, in every layer.
bool has_llama_attention(const ModelConfig& model);
// Norms of outputs, scaled embeddings or GeGLU.
bool has_gemma_parts(const ModelConfig& model);
// Latent attention with rotary positions, and experts, as DeepSeek-V3 has them.
bool has_deepseek_layers(const ModelConfig& model);
// Delta and latent attention, some layers of each and none of another.
bool has_kimi_attention(const ModelConfig& model);
// Nothing that Kimi K3 has and Kimi Linear has not: Block AttnRes, a bounded gate, output gates of
// full rank, experts in a latent space, SiTU.
bool is_without_k3_parts(const ModelConfig& model);
// Transformer layers in a block of Block AttnRes as Kimi K3 has it; 0 of other depth mixing.
int64_t layers_in_block(const ModelConfig& model);

// What a model directory looks like to others.
enum class FileLayout {
  llama,        // llama_family.h, but Gemma: plain residual connections, grouped-query attention
  gemma3,       // of that family, where files hold gains of norms less 1
  deepseek_v3,  // deepseek_config_json.h
  softmax_experts,  // llama_family.h, with experts that softmax chooses; read only
  kimi_linear,      // kimi_config_json.h
  kimi_k3,          // the same, nested
  attnres,          // every other: `model_type: attnres`
};
// One that other programs have, if it is this model's. Throws Error saying why where there is none.
FileLayout public_layout(const ModelConfig& model);
// The one that holds every number of the model: the public one, but where that is Gemma's, of whose
// gains bits are lost, or where there is none, attnres.
FileLayout layout_of(const ModelConfig& model);

}  // namespace attnres
