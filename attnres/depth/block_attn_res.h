// Block Attention Residuals (arXiv 2603.15031, section 3.2, Eqs. 2 to 6):
//   h_l = sum_i alpha_{i->l} v_i,  alpha_{i->l} = softmax_i( w_l . (g_l * RMS(v_i)) )
// Block n holds `block_size` consecutive sublayers, the last block what remains; its representation
// b_n is the sum of their outputs, b_0 the token embedding. The first sublayer of a block reads
// b_0 .. b_{n-1}; the others also the partial sum of their own block. The output site has its own w
// and g and reads every block, a last short one by its final partial sum.
//
// w_l starts at zero, where alpha is uniform; g_l at one. Site 0 has the embedding as its only
// source, so it has neither. RMS uses the model's norm_eps. Softmax in float32 or better.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

struct AttnResSettings {
  int64_t block_size = 1;  // S, in sublayers, from 1 to L
  // eps of a site's input norm: "fixed" is the model's norm_eps; "per_source_count" divides it by
  // n^2, n the site's number of sources, so that with zero pseudo-queries (h the mean of n sources)
  // the model equals a residual one to rounding.
  std::string norm_eps = "fixed";
};

// Throws UsageError if block_size or norm_eps cannot be.
void check(const AttnResSettings& settings, const MixerShape& shape);
std::unique_ptr<DepthMixer> make_attn_res_mixer(const AttnResSettings& settings,
                                                const MixerShape& shape,
                                                ParameterRegistry& parameters);

Mechanism block_attn_res_mechanism();

}  // namespace attnres
