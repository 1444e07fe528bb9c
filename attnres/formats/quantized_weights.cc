#include "attnres/formats/quantized_weights.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

constexpr const char* kBlockSize = "weight_block_size";  // of FP8

// Of those forms whose numbers have a reader.
bool has_reader(QuantizedForm form) {
  using enum QuantizedForm;
  return form == none || form == fp8_blocks || form == mxfp4_packed || form == mxfp4_blocks;
}

std::string text_of(const Json& config, const char* key) {
  return config.contains(key) && config[key].is_string() ? config[key].get<std::string>() : "";
}

bool is_true(const Json& config, const char* key) {
  return config.contains(key) && config[key] == true;
}

// By what saves a model of transformers with plain numbers.
std::string unpacked_by(const std::string& config_class) {
  return "from_pretrained(DIR, quantization_config=" + config_class +
         ").save_pretrained(OUT) in transformers";
}

std::string unpacking(const std::string& method) {
  if (method == "mlx") return "mlx_lm.convert --dequantize";
  if (method == "bitsandbytes")
    return "model.dequantize() and save_pretrained(OUT) in transformers";
  if (method == "fp8") return unpacked_by("FineGrainedFP8Config(dequantize=True)");
  if (method == "compressed-tensors") {
    return unpacked_by("CompressedTensorsConfig(run_compressed=False)");
  }
  return "";
}

// "compressed-tensors", where an older file names the format alone.
std::string method_of(const Json& config, std::string_view key) {
  for (const char* name : {"quant_method", "quant_algo"}) {
    if (std::string method = text_of(config, name); !method.empty()) return method;
  }
  if (key == "quantization") return "mlx";
  if (key == "compression_config") return "compressed-tensors";
  const bool is_bitsandbytes = is_true(config, "load_in_4bit") || is_true(config, "load_in_8bit");
  return is_bitsandbytes ? "bitsandbytes" : "an unnamed method";
}

QuantizedForm form_of(const Json& config, const std::string& method) {
  using enum QuantizedForm;
  const bool has_blocks = config.value(kBlockSize, Json()) == Json({128, 128});
  if (text_of(config, "format") == "mxfp4-pack-quantized") return mxfp4_packed;
  if (method == "fp8" && has_blocks) return fp8_blocks;
  return method == "mxfp4" ? mxfp4_blocks : other;
}

// What of a method's settings decides how numbers are stored: "4 bits".
std::string details_of(const Json& config) {
  if (config.contains(kBlockSize) && config[kBlockSize].is_array()) {
    return ", a scale for each block of " + shown(config[kBlockSize]);
  }
  if (const std::string format = text_of(config, "format"); !format.empty()) {
    return " " + one_line(format);
  }
  for (const char* name : {"bits", "w_bit", "nbits"}) {
    if (config.contains(name)) return fmt::format(", {} bits", shown(config[name]));
  }
  if (is_true(config, "load_in_4bit")) return ", 4 bits";
  return is_true(config, "load_in_8bit") ? ", 8 bits" : "";
}

}  // namespace

QuantizedWeights read_quantization(const ConfigKeys& keys) {
  for (const char* key : {"quantization_config", "quantization", "compression_config"}) {
    if (keys.missing(key)) continue;
    const Json& config = keys.at(key);
    if (!config.is_object()) return {QuantizedForm::other, key, shown(config), ""};
    const std::string method = method_of(config, key);
    const QuantizedForm form = form_of(config, method);
    return {form, key, one_line(method) + details_of(config), unpacking(method)};
  }
  return {};
}

void require_read_weights(const ConfigKeys& keys) {
  const QuantizedWeights weights = read_quantization(keys);
  if (has_reader(weights.form)) return;
  fail(
      "{}: {}: weights are quantized ({}), which attnres does not read; take the model that they "
      "were made from, or a GGUF file of it{}",
      keys.what(), weights.key, weights.method,
      weights.unpack.empty() ? "" : ", or unpack them first: " + weights.unpack);
}

}  // namespace attnres
