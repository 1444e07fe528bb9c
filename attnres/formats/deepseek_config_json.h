// config.json of DeepSeek-V3 (arXiv 2412.19437) as transformers writes it: latent attention with
// rotary positions, groups of experts.
#pragma once

#include <nlohmann/json.hpp>

#include "attnres/formats/config_keys.h"
#include "attnres/model/config.h"
#include "attnres/support/json.h"

namespace attnres {

// Takes a model that has_deepseek_layers.
Json to_deepseek_json(const ModelConfig& model);
// Throws Error as from_config_json.
ModelConfig from_deepseek_json(const ConfigKeys& keys);

}  // namespace attnres
