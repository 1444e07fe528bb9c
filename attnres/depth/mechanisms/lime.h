// Layer-Integrated Memory (LIMe; Gerasimov et al., arXiv 2502.09245): the residual stream as it is,
// and attention with keys and values mixed over this and all earlier layers, for the same token
// before rotary positions. In Transformer layer j >= 1, for its key-value head h,
//   K'_h = sum_{i=0..j} sum_g R_{h,i,g} K_{i,g},   V'_h likewise with the same R
// K_{i,g}: what head g of layer i projected, un-mixed. R [H_kv, (j+1) H_kv], its columns in order
// of i then g. Layer 0 has none.
//
// Start: R the identity at i = j, elsewhere uniform within +-sqrt(3 / ((j+1) H_kv)), as the
// authors' code has it (the pseudocode of their Appendix E misplaces a bracket): not residual.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism lime_mechanism();

}  // namespace attnres
