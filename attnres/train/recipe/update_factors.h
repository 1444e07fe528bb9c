// How parameters of a model are updated beside each other: what train.rates and train.decays of a
// recipe say.
#pragma once

#include <utility>
#include <vector>

#include "attnres/parameters/parameters.h"
#include "attnres/train/recipe/recipe.h"

namespace attnres {

// Of one parameter.
struct UpdateFactors {
  double rate = 1;   // on train.learning_rate; 0 freezes it, weight decay does not move it either
  double decay = 1;  // on train.weight_decay

  bool operator==(const UpdateFactors&) const = default;
  bool operator<(const UpdateFactors& other) const {
    return std::pair(rate, decay) < std::pair(other.rate, other.decay);
  }
};

// Those of each of a whole model's parameters, in their order: the numbers of the first pattern of
// train.rates, and of train.decays, that matches the parameter's name in model.safetensors. Where
// none does the rate's is one, or zero beside maps of low rank (model.lora), whose own it is one;
// and the decay's one for linear maps and zero for all else (has_weight_decay). Patterns are a
// shell's, and * stands for dots too. Throws UsageError where a pattern matches no parameter that
// gradients move, naming the nearest, or some experts of a stack, which are one parameter, but not
// the others.
std::vector<UpdateFactors> update_factors(const ParameterRegistry& parameters, int sublayers,
                                          const TrainConfig& train);

}  // namespace attnres
