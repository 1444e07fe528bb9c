// ReZero (Bachlechner et al., arXiv 2003.04887):
//   h_{l+1} = h_l + a_j f_l(h_l),  h_0 = embedding
// a_j is a learned scalar, shared by the two sublayers of Transformer layer j = l / 2 (it sits at
// site 2j). There is no norm anywhere, at the output neither. It starts at a = 0, where every site
// reads the embedding.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism rezero_mechanism();

}  // namespace attnres
