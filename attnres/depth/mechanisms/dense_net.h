// Dense connections (Huang et al., DenseNet, arXiv 1608.06993, Eq. 2), as Table 5 of arXiv
// 2603.15031 carries them over to sublayers:
//   h_l = P_l [v_0; v_1; ..; v_l] = sum_i P_{l,i} v_i
// v_0 is the embedding, v_i the output of sublayer i-1, [;] concatenation, P_l a linear map
// d x (l+1)d ("dense_proj") of site l = 0 .. L, P_{l,i} its columns i d .. (i+1)d - 1.
//
// DenseNet's bottleneck of batch norm, relu and a 1x1 convolution is that map alone; what it pools
// are pixels, of which a token has one. Ours: it starts as the mean, P_{l,i} = I / (l+1), which the
// input norm turns into a residual stream but for eps.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism dense_net_mechanism();

}  // namespace attnres
