// llama.cpp's architectures: which models are of each, and their keys both ways. What their tensors
// are made of is in gguf_parts.h.
#pragma once

#include <functional>
#include <string>
#include <type_traits>

#include "attnres/formats/config_keys.h"
#include "attnres/formats/gguf_keys.h"
#include "attnres/formats/gguf_layers.h"
#include "attnres/formats/gguf_reader.h"
#include "attnres/support/error.h"
#include "attnres/support/json.h"

namespace attnres {

struct GgufLayout {
  GgufArchitecture architecture;
  const char* name;  // general.architecture
  // Throws Error saying what of a model of this architecture llama.cpp does not compute.
  std::function<void(const ModelConfig& config)> check;
  // Both beside what all have: sizes, norm_eps, tied embeddings.
  std::function<void(const ModelConfig& config, GgufKeys& keys)> write;
  std::function<void(const GgufFile& file, const ConfigKeys& keys, Json& model)> read;
};

// Throws Error unless a key of a recipe's model is what llama.cpp computes of an architecture.
template <class T>
void require_in_llama_cpp(const std::string& architecture, const char* key, const T& given,
                          const std::type_identity_t<T>& computed) {
  require(given == computed, "model.{} {}: llama.cpp computes only {} in {}; write safetensors",
          key, given, computed, architecture);
}

// The first that computes the model. Throws Error saying what of it none does, and what to do.
const GgufLayout& gguf_layout(const ModelConfig& config);
// That of a file. Throws Error with the names of those that are read.
const GgufLayout& gguf_layout(const GgufFile& file);

}  // namespace attnres
