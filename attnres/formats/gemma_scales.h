// The scales of Gemma 3, which its files hold in other words or not at all.
#pragma once

#include <cmath>
#include <cstdint>

#include "attnres/layers/attention.h"
#include "attnres/model/config.h"

namespace attnres {

inline double gemma_embedding_scale(int64_t width) {
  return std::sqrt(static_cast<double>(width));
}

inline bool has_gemma_embedding_scale(const ModelConfig& model) {
  return std::abs(model.embedding_scale / gemma_embedding_scale(model.width) - 1) < 1e-6;
}

// Whether its score_scale is that of a whole number.
inline bool has_whole_score_scale(const ModelConfig& model) {
  const double scale = model.settings<GroupedQuerySettings>().score_scale;
  return scale == 0 || std::abs(scale * std::sqrt(std::round(1 / (scale * scale))) - 1) < 1e-12;
}

}  // namespace attnres
