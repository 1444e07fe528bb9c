// How much alike the sources of a model's depth mixing are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attnres/depth/mixing_matrix.h"
#include "attnres/model/transformer.h"

namespace attnres {

// cosine[i][j] = mean over tokens of <v_i, v_j> / (|v_i| |v_j|), 0 for a token where either is
// zero.
struct SourceSimilarity {
  std::vector<std::string> sources;
  Matrix cosine;
};

// Where sites have depth weights, the sources are those that they are of: the embedding, then
// blocks or outputs in the order in which sites first read them, each as its first reader does;
// last, where the output site reads a partial sum, that. Elsewhere they are the embedding and every
// sublayer's output. Sums are float64.
class SourceSimilarityAverage {
 public:
  explicit SourceSimilarityAverage(const Transformer& model) : model_(model) {}

  // Runs the model. Keeps all sources of these tokens at once meanwhile.
  void add(const at::Tensor& ids_BT);
  // Throws Error before any token.
  SourceSimilarity similarity() const;

 private:
  const Transformer& model_;
  std::vector<std::string> names_;
  at::Tensor sums_NN_;
  int64_t tokens_ = 0;
};

}  // namespace attnres
