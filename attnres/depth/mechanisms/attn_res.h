// Full Attention Residuals (arXiv 2603.15031, section 3.1, Eqs. 2 to 4): every site attends to the
// token embedding and to the output of every sublayer before it. This is Block(1).
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism attn_res_mechanism();

}  // namespace attnres
