// Rotary positions in config.json: theta and its scaling, as transformers 5 (rope_parameters) and
// older releases (rope_theta and rope_scaling) write them.
#pragma once

#include <nlohmann/json.hpp>

#include "attnres/formats/config_keys.h"
#include "attnres/layers/rope_scaling.h"
#include "attnres/support/json.h"

namespace attnres {

struct StoredRope {
  double theta = 10000;
  RopeScaling scaling = {};
};

// Of a configuration whose rope_theta is `theta` where it gives none.
StoredRope read_rope(const ConfigKeys& keys, double theta);
// Of rope_parameters, or one of those of Gemma's two kinds of layers. Throws Error naming a
// rope_type that is not computed.
StoredRope read_rope_parameters(const ConfigKeys& rope, const ConfigKeys& keys, double theta);

Json rope_parameters_json(const StoredRope& rope);

}  // namespace attnres
