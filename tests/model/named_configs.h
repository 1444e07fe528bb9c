// Small models by name, for tests of a list of them.
#pragma once

#include <ostream>
#include <string>

#include "tests/model/small_models.h"

namespace attnres::testing {

struct NamedConfig {
  std::string name;
  ModelConfig config;
};
inline std::ostream& operator<<(std::ostream& out, const NamedConfig& named) {
  return out << named.name;
}

inline NamedConfig tied_config(int64_t layers = 3) {
  NamedConfig tied = {"tied", small_config(block_attn_res(4), layers)};
  tied.config.tie_embeddings = true;
  return tied;
}

// These sites of the model, all parameters of which matter.
inline Transformer model_of(const ModelConfig& config, const Precision& precision = at::kDouble,
                            const SiteSet& sites = {}) {
  return perturbed(Transformer(config, kSmallVocabulary, /*seed=*/1, precision, at::kCPU, sites));
}

}  // namespace attnres::testing
