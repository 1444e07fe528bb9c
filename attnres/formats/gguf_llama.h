// Llama's family (llama_family.h) in GGUF files. What llama.cpp computes of each, beside Llama:
//
//   llama    positions scaled as llama3 too; Mistral, but for its window; Mixtral
//   qwen2    heads of width / heads channels, no windows
//   qwen3    no windows
//   smollm3  every fourth layer, and no other, without positions; no windows
//   gemma3   windows in any layers, whose positions are not scaled; scores scaled by
//            head_width^-1/2, in models of 62 layers by (width / heads)^-1/2
//
// Linear and YaRN positions in all, as gguf_rope.h has them; of gemma3 with windows no YaRN, by
// which llama.cpp multiplies cosine and sine in the windows too. llama.cpp takes GeGLU from a table
// of float16 numbers: log-probabilities of gemma3 differ by some 1e-3.
#pragma once

#include <vector>

#include "attnres/formats/gguf_layouts.h"

namespace attnres {

inline constexpr const char* kGgufWindow = "attention.sliding_window";

std::vector<GgufLayout> gguf_llama_layouts();

// What all have that have grouped-query attention.
void write_gguf_heads(const ModelConfig& config, GgufKeys& keys);
void read_gguf_heads(const GgufFile& file, const ConfigKeys& keys, Json& model);

}  // namespace attnres
