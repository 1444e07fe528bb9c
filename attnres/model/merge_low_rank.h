// A model whose maps of low rank (layers/low_rank_map.h) were added to those that they lie beside.
#pragma once

#include <memory>

#include "attnres/model/transformer.h"

namespace attnres {

// W + s B A in the place of each W that has one beside it, computed in float64; all else copied.
// Throws Error where such a W is packed.
std::unique_ptr<Transformer> merge_low_rank(const Transformer& model);

}  // namespace attnres
