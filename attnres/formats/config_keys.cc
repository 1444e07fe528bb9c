#include "attnres/formats/config_keys.h"

namespace attnres {

void require_unquantized(const ConfigKeys& keys) {
  require(keys.missing("quantization_config"),
          "{}: quantization_config: quantized weights cannot be read; save the model without",
          keys.what());
}

ModelConfig read_stored_model(const Json& model, const ConfigKeys& keys, const char* path) {
  try {
    return read_model_config(model, path);
  } catch (const UsageError& e) {
    fail("{}: {}", keys.what(), e.what());
  }
}

}  // namespace attnres
