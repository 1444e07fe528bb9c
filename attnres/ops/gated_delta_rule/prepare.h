// The inputs of the gated delta rule, checked and converted, as its forms share them.
#pragma once

#include "attnres/ops/gated_delta_rule/gated_delta_rule.h"

namespace attnres {

// All but v in the dtype of the computation, with a state. Throws Error, naming the first input of
// a wrong shape.
GatedDeltaRuleInputs prepare_delta_rule(const GatedDeltaRuleInputs& inputs);

}  // namespace attnres
