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

// The key of the parameters that count: rope_scaling before rope_parameters; null where neither has
// any.
const char* rope_key(const ConfigKeys& keys);

// Reads a configuration whose rope_theta is `theta` where it gives none. As in transformers
// original_max_position_embeddings beside the parameters counts before the one in them. Throws
// Error where kinds of layers have positions each of their own.
StoredRope read_rope(const ConfigKeys& keys, double theta);
// Reads rope_parameters, or one of those of Gemma's two kinds of layers. Throws Error naming a
// rope_type that is not computed.
StoredRope read_rope_parameters(const ConfigKeys& rope, const ConfigKeys& keys, double theta);

// What layer_types, and the parameters of Gemma's two kinds of layers, call them.
inline constexpr const char* kFullLayer = "full_attention";
inline constexpr const char* kWindowLayer = "sliding_attention";

Json rope_parameters_json(const StoredRope& rope);

}  // namespace attnres
