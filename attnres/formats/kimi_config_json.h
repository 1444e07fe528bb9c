// config.json of Kimi Linear (transformers' `kimi_linear`; plain residual connections) and of Kimi
// K3 text models (`kimi_k3`; Block AttnRes whose blocks are whole Transformer layers).
// architectures.h says which models each can say everything about. K3 also may have a bounded gate,
// full-rank output gates, a low-rank query map and experts in a latent space; its activation is
// situ.
#pragma once

#include "attnres/formats/config_keys.h"
#include "attnres/model/config.h"

namespace attnres {

// Take models of that layout, and give all but what every config.json says (model_config_json.h).
// K3's is nested in `text_config`.
Json to_kimi_linear_json(const ModelConfig& model);
Json to_kimi_k3_text_json(const ModelConfig& model);

// `keys` are those of the object with hidden_size: the whole file, or K3's text_config. Takes what
// transformers, mlx-lm and the published files write. Throws Error on contradictory lists of layers
// and on settings that this program does not compute.
ModelConfig from_kimi_json(const ConfigKeys& keys);

}  // namespace attnres
