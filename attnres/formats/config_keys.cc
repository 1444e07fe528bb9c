#include "attnres/formats/config_keys.h"

#include <string_view>

#include "attnres/support/format.h"

namespace attnres {

int64_t read_layer_count(const ConfigKeys& keys) {
  constexpr int64_t kMost = 100000;
  const int64_t layers = keys.whole("num_hidden_layers");
  require(layers >= 1 && layers <= kMost, "{}: num_hidden_layers: expected 1 to {}, got {}",
          keys.what(), kMost, layers);
  return layers;
}

namespace {

// By the key under which it stands: "gptq, 4 bits".
std::string quantization_method(const ConfigKeys& keys, const char* key) {
  const Json& config = keys.at(key);
  if (!config.is_object()) return shown(config);
  std::string method = std::string_view(key) == "quantization" ? "mlx" : "an unnamed method";
  for (const char* name : {"quant_method", "quant_algo", "format"}) {
    if (!config.contains(name) || !config[name].is_string()) continue;
    method = one_line(config[name].get<std::string>());
    break;
  }
  for (const char* name : {"bits", "w_bit"}) {
    if (config.contains(name)) return fmt::format("{}, {} bits", method, shown(config[name]));
  }
  return method;
}

}  // namespace

void require_unquantized(const ConfigKeys& keys) {
  // quantization is mlx's, compression_config of older files of compressed-tensors.
  for (const char* key : {"quantization_config", "quantization", "compression_config"}) {
    if (keys.missing(key)) continue;
    fail(
        "{}: {}: weights are quantized ({}), which attnres does not read; take the model that "
        "they were made from, or unpack them first ({})",
        keys.what(), key, quantization_method(keys, key),
        std::string_view(key) == "quantization"
            ? "mlx_lm.convert --dequantize"
            : "in transformers model.dequantize(), then model.save_pretrained(DIR)");
  }
}

ModelConfig read_stored_model(const Json& model, const ConfigKeys& keys, const char* path) {
  try {
    return read_model_config(model, path);
  } catch (const UsageError& e) {
    fail("{}: {}", keys.what(), e.what());
  }
}

}  // namespace attnres
