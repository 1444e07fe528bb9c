// Rotary positions (layers/rope_scaling.h) in GGUF files, as llama.cpp computes them:
//
//   rope.freq_base                                          theta
//   rope.scaling.{type, factor, original_context_length}    linear, yarn
//   rope.scaling.attn_factor                                yarn: cosine and sine are multiplied by
//                                                           this times 0.1 ln(factor) + 1
//   rope_freqs.weight                                       llama3: by what the frequency of each
//                                                           pair is divided, [K/2]
//
// YaRN is computed with llama.cpp's defaults of beta_fast and beta_slow alone, and whole pairs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "attnres/formats/config_keys.h"
#include "attnres/formats/gguf_keys.h"
#include "attnres/formats/gguf_reader.h"
#include "attnres/model/config.h"

namespace attnres {

inline constexpr const char* kGgufRopeFactors = "rope_freqs.weight";

// By what YaRN multiplies cosine and sine, and what it does where nothing is said of it.
double yarn_magnitude(const RopeScaling& scaling);
double usual_yarn_magnitude(double factor);

// Throws Error on scalings that llama.cpp does not compute in an architecture of this name.
void check_gguf_rope(const RopeScaling& scaling, bool computes_llama3, const std::string& name);

// `unsaid_magnitude`: by what llama.cpp multiplies cosine and sine of YaRN without attn_factor.
void write_gguf_rope(const ModelConfig& config, double unsaid_magnitude, GgufKeys& keys);
// The divisors of a model with llama3.
at::Tensor gguf_rope_factors(const ModelConfig& config);

struct GgufRope {
  double theta = 10000;
  RopeScaling scaling;     // without an attention_factor
  double attn_factor = 1;  // of yarn
};
// Settings of llama3 are those that give the factors of rope_freqs.weight: published models all
// have low_freq_factor 1 and high_freq_factor 4, and files that save_gguf wrote say them. Throws
// Error naming the key on a scaling that is not computed, or factors that llama3 does not give.
GgufRope read_gguf_rope(const GgufFile& file, const ConfigKeys& keys, int64_t head_width);
// The scaling, with an attention_factor of this.
RopeScaling with_magnitude(RopeScaling scaling, double magnitude);

}  // namespace attnres
