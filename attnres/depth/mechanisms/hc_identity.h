// Hyper-connections whose streams do not mix among themselves: mhc (constrained_streams.h) with A
// the identity,
//   H_j <- H_j + b_j f_l(norm(sum_i a_i H_i))
// After the article "Your DeepSeek mHC might not need the m" (2026), which reports that replacing A
// by the identity alone does better than mHC. It leaves a and b open; here they stay as mHC has
// them, as also in the model HY-V4 (HYV4HyperConnection of transformers).
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism hc_identity_mechanism();

}  // namespace attnres
