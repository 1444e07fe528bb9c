// Architectures with latent attention in GGUF files. llama.cpp's are these:
//
//   deepseek2    latent attention with rotary positions, YaRN's or not scaled, in every layer;
//                experts, in groups or not, with shared ones; residual connections
//   kimi-linear  delta attention with a gate of low rank and latent attention, SwiGLU, experts with
//                shared ones, residual connections
//   kimi-k3      the same with everything that layers/{delta_attention,latent_attention,experts}.h
//                have of Kimi K3, and Block AttnRes of whole Transformer layers
//
// deepseek2 multiplies scores by m^2, m = attn_factor (1 + l ln(factor)), and YaRN's cosine and
// sine by attn_factor, where l = rope.scaling.yarn_log_multiplier is not 0; where it is 0 all of
// these by attn_factor (1 + 0.1 ln(factor)). A file gives what the model has, whose config.json
// says it in other words (mscale and mscale_all_dim).
#pragma once

#include <vector>

#include "attnres/formats/gguf_layouts.h"

namespace attnres {

std::vector<GgufLayout> gguf_latent_layouts();

}  // namespace attnres
