// config.json of the architectures of transformers that are Llama with parts of their own:
//
//   llama         grouped-query attention, SwiGLU
//   mistral       every layer in a sliding window
//   qwen2         biases of the query, key and value maps; a window in some layers
//   qwen3         norms of queries and keys; a window in some layers
//   smollm3       some layers without positions; a window in some layers
//   gemma3_text   norms of queries and keys, and of every sublayer's output; GeGLU; embeddings
//   times
//                 sqrt(d); layers in a window, which may have a theta of their own, and others
//
// Each is a row of a table in the source: what a model of it has, and its keys both ways.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnres/formats/config_keys.h"
#include "attnres/model/config.h"
#include "attnres/support/json.h"

namespace attnres {

// The model_type that computes this model; empty where none of them does.
std::string llama_family_type(const ModelConfig& model);
std::vector<std::string> llama_family_types();

// The configuration in the layout of the relative that computes this model.
Json to_llama_family_json(const ModelConfig& model);
// Reads that of the given relative. Keys that older releases of transformers wrote, or that files
// leave out, are understood. Throws Error as from_config_json.
ModelConfig from_llama_family_json(const std::string& type, const ConfigKeys& keys);

}  // namespace attnres
