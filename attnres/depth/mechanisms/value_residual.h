// Value residual learning, ResFormer (Zhou et al., arXiv 2410.17897): the residual stream as it is,
// and in the attention of every Transformer layer but the first
//   v <- lambda_1 v_first + lambda_2 v
// v_first: the values of the first layer's attention for the same token. Each layer has its own
// lambda, 0.5 and 0.5 at the start; with `learned` false they stay there.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism value_residual_mechanism();

}  // namespace attnres
