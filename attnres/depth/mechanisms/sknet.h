// Selective kernels (Li et al., SKNet, arXiv 1903.06586, Eqs. 1 to 6) over depth: the branches are
// the embedding and the outputs of all sublayers, and every channel chooses among them:
//   z_l = relu(norm(W_l sum_i v_i))                     fuse
//   a_{l,i} = softmax_i(B_{l,i} z_l), per channel       select
//   h_l = sum_{i=0..l} a_{l,i} * v_i
// v_0 is the embedding, v_i the output of sublayer i-1; W_l ("fuse_proj") is m x d with
// m = max(d / 16, 32), as in the paper; norm is RMSNorm over m with a gain ("fuse_norm") where the
// paper has a batch norm; B_l ("select_proj") stacks the B_{l,i}, d x m each. The softmax is in
// float32 or better. Site 0 has one source and reads it.
//
// Ours: z is a token's own, where the paper pools over the pixels of an image, which over tokens
// would see the future. B starts at 0: h is the mean of the sources, which the input norm turns
// into a residual stream but for eps. W starts with variance 1/d.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism sknet_mechanism();

}  // namespace attnres
