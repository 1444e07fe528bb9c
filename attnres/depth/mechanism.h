// The mechanisms that a recipe can name in model.depth_mixing.type, and how to build one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attnres/depth/depth_mixer.h"
#include "attnres/support/json.h"
#include "attnres/support/parameters.h"

namespace attnres {

// What every mixer needs to know of the model around it.
struct MixerShape {
  int64_t width = 0;  // d
  int sublayers = 0;  // L
  double norm_eps = 1e-6;
};

struct Mechanism {
  std::string name;     // as in the recipe
  std::string formula;  // one line
  std::string source;   // paper and equation
  // The settings with every default filled in. Throws UsageError on unknown keys and bad values.
  std::function<Json(const Json& settings, const MixerShape&)> resolve;
  // Adds its parameters to the registry. `settings` are resolved.
  std::function<std::unique_ptr<DepthMixer>(const Json& settings, const MixerShape&,
                                            ParameterRegistry&)>
      make;
};

const std::vector<Mechanism>& mechanisms();

// The mechanism that `depth_mixing.type` names. Throws UsageError with the list if there is none.
const Mechanism& find_mechanism(const Json& depth_mixing);

// `depth_mixing` with every default filled in.
Json resolve_depth_mixing(const Json& depth_mixing, const MixerShape&);
std::unique_ptr<DepthMixer> make_mixer(const Json& depth_mixing, const MixerShape&,
                                       ParameterRegistry&);

}  // namespace attnres
