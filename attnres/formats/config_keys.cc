#include "attnres/formats/config_keys.h"

namespace attnres {

ModelConfig read_stored_model(const Json& model, const ConfigKeys& keys, const char* path) {
  try {
    return read_model_config(model, path);
  } catch (const UsageError& e) {
    fail("{}: {}", keys.what(), e.what());
  }
}

}  // namespace attnres
