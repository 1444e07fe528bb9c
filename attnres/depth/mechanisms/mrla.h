// Multi-head recurrent layer attention (Fang et al., arXiv 2302.03985), one head per channel and
// sigmoids for the softmax, as in Table 5 of arXiv 2603.15031:
//   h_l = sum_{i=0..l} sg(q_l) * sg(k_i) * u_i      all products by channel
// v_0 is the embedding (ours: a source too), v_i the output of sublayer i-1, sg the sigmoid, and
//   q_l = query_conv_l (x) v_l,  k_i = key_conv_i (x) v_i    across channels, zeros beyond the ends
//   u_i[t] = sum_{s=0..2} value_conv_i[s] * v_i[t - 2 + s]   by channel, over the last 3 tokens
// Query and key kernels have m taps, m the odd number that is (log2(d) + 1) / 2 rounded down, or
// the next; value kernels 3 x d. As weight and value of a source do not depend on who reads it, the
// sum is carried along: S_l = S_{l-1} + sg(k_l) * u_l, h_l = sg(q_l) * S_l.
//
// The paper pools q and k over the pixels of an image and convolves values over 3 x 3 of them. Over
// tokens the pool would see the future, so there is none, and the convolution is causal (ours);
// tokens before the first are zeros. While decoding, the last two tokens of every source are kept.
//
// Ours: query and key kernels start at 0 and value kernels at the token itself; then h is a quarter
// of the residual stream, which the input norm takes away but for eps.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism mrla_mechanism();

}  // namespace attnres
