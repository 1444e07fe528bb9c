// Which of a model's parameters are of what combines its layers. Mixers name theirs and layers
// name theirs, and neither knows the other's: a role that both have at a site is the layer's, and
// the mixer's is called kMixersRole + role there.
#pragma once

#include "attnres/parameters/parameters.h"

namespace attnres {

inline constexpr const char* kMixersRole = "depth_mixing.";

// While one lives, what this thread adds to the registry is a mixer's.
class AddingOfMixer {
 public:
  explicit AddingOfMixer(const ParameterRegistry& parameters);
  ~AddingOfMixer();
  AddingOfMixer(const AddingOfMixer&) = delete;
  AddingOfMixer& operator=(const AddingOfMixer&) = delete;
};

// Whether one of the registry's parameters is the mixer's.
bool is_of_mixer(const ParameterRegistry& parameters, const Parameter& parameter);

}  // namespace attnres
