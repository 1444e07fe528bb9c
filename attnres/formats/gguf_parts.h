// What the tensors of a model's GGUF file are made of, for whoever writes them or reads them.
#pragma once

#include <cstdint>
#include <vector>

#include "attnres/formats/gguf_layers.h"

namespace attnres {

// A part of one site, under its full name. One without roles is there for llama.cpp alone.
struct GgufSitePart {
  int site = 0;
  GgufPart part;
};

// All tensors of a model, in the order of a file.
std::vector<GgufSitePart> gguf_parts(const ModelConfig& config, GgufArchitecture architecture);

// SwiGLU is SiTU with this beta and no linear_beta, equal to float32 rounding for inputs below 30.
inline constexpr float kGgufBetaOfSilu = 1 << 16;
inline constexpr uint32_t kGgufSigmoidRouting = 2;

}  // namespace attnres
