// The depth mixing matrices of a model on a text (depth/mixing_matrix.h).
#pragma once

#include <vector>

#include "attnres/depth/mixing_matrix.h"
#include "attnres/model/transformer.h"

namespace attnres {

// Keeps what the mixer computes for all tokens at once: a few hundred are enough.
std::vector<MixingMatrix> mixing_matrices(const Transformer& model, const at::Tensor& ids_BT);

}  // namespace attnres
