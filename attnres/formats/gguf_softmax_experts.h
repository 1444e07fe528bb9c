// Experts that softmax chooses, in every layer of a model with grouped-query attention, in GGUF
// files. What llama.cpp computes of each architecture:
//
//   llama     Mixtral: no windows
//   qwen3moe  Qwen 3's experts: no windows
//   gpt-oss   windows in every second layer, the first being one, a limit of 7
//
// Weights of the chosen experts are always divided by their sum, and not scaled. Where training
// moved the bias of the choice from zero there is no place for it.
#pragma once

#include <string>
#include <vector>

#include "attnres/formats/gguf_layouts.h"

namespace attnres {

// Whether it has such experts, and which of the architectures it is then.
bool has_softmax_experts(const ModelConfig& config);
const char* softmax_experts_name(const ModelConfig& config);

// Of `llama` with experts, and of qwen3moe.
void check_gguf_softmax_experts(const ModelConfig& config, const std::string& name);
void write_gguf_softmax_experts(const ModelConfig& config, GgufKeys& keys);
void read_gguf_softmax_experts(const GgufFile& file, const ConfigKeys& keys, Json& model);

std::vector<GgufLayout> gguf_softmax_experts_layouts();

}  // namespace attnres
