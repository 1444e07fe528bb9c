// The public names of parameters: Llama's in Hugging Face files, and Kimi K3's for depth attention.
#pragma once

#include <string>

#include "attnres/support/parameters.h"

namespace attnres {

// For example (site 3, "pseudo_query") of an 8-sublayer model:
// "model.layers.1.mlp_res_proj.weight".
std::string hugging_face_name(const Parameter& parameter, int sublayers);

}  // namespace attnres
