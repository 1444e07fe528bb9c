// The configuration that a GGUF file's metadata gives.
#pragma once

#include "attnres/formats/gguf_layers.h"
#include "attnres/formats/gguf_reader.h"
#include "attnres/formats/model_config_json.h"

namespace attnres {

struct GgufConfig {
  GgufArchitecture architecture = GgufArchitecture::llama;
  StoredConfig stored;
};

// Throws Error on another architecture than those of gguf_layouts.h, a missing key, a wrong type,
// sizes that do not fit together, and on settings that this program does not compute: other scaled
// positions, windows where llama.cpp has none, experts in a llama, other routing.
//
// Where the head is the token embedding, or holds the same bytes, the model's embeddings are tied.
// Real numbers, which are stored in float32, are taken as the shortest decimals that give these.
GgufConfig read_gguf_config(const GgufFile& file);

}  // namespace attnres
