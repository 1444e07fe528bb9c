// Learning rates of a model's parameters beside each other: what train.rates of a recipe says.
#pragma once

#include <vector>

#include "attnres/parameters/parameters.h"
#include "attnres/support/json.h"

namespace attnres {

// The factor on the learning rate of each of a whole model's parameters, in their order: that of
// the first of `rates` whose pattern matches the parameter's name in model.safetensors, or one.
// Patterns are a shell's, and * stands for dots too. A factor of 0 freezes a parameter: weight
// decay does not move it either. Throws UsageError where a pattern matches no parameter that
// gradients move, naming the nearest, or some experts of a stack, which are one parameter, but not
// the others.
std::vector<double> rate_factors(const ParameterRegistry& parameters, int sublayers,
                                 const NamedNumbers& rates);

}  // namespace attnres
