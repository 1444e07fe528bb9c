// LayerScale (Touvron et al., "Going deeper with Image Transformers", arXiv 2103.17239):
//   h_{l+1} = h_l + lambda_l * f_l(norm(h_l)),  h_0 = embedding
// lambda_l [d] is learned and multiplies channel by channel. It starts, in a network of J
// Transformer layers, at 0.1 for J <= 18, 1e-5 for J <= 24 and 1e-6 beyond. Each norm is RMSNorm
// with its own gain; the output site reads norm(h_L).
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism layer_scale_mechanism();

}  // namespace attnres
