#include "attnres/formats/config_keys.h"

#include "attnres/support/format.h"

namespace attnres {

int64_t read_layer_count(const ConfigKeys& keys) {
  constexpr int64_t kMost = 100000;
  const int64_t layers = keys.whole("num_hidden_layers");
  require(layers >= 1 && layers <= kMost, "{}: num_hidden_layers: expected 1 to {}, got {}",
          keys.what(), kMost, layers);
  return layers;
}

ModelConfig read_stored_model(const Json& model, const ConfigKeys& keys, const char* path) {
  try {
    return read_model_config(model, path);
  } catch (const UsageError& e) {
    fail("{}: {}", keys.what(), e.what());
  }
}

}  // namespace attnres
