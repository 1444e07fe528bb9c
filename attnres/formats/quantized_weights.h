// How config.json says that weights are quantized, by the keys of transformers
// (quantization_config), of older files of compressed-tensors (compression_config) and of mlx
// (quantization).
#pragma once

#include <string>

#include "attnres/formats/config_keys.h"

namespace attnres {

enum class QuantizedForm {
  none,
  fp8_blocks,    // fp8 with weight_block_size [128, 128]: F8_E4M3, and weight_scale_inv
  mxfp4_packed,  // compressed-tensors mxfp4-pack-quantized: weight_packed and weight_scale
  mxfp4_blocks,  // mxfp4, of gpt-oss: NAME_blocks and NAME_scales
  other
};

struct QuantizedWeights {
  QuantizedForm form = QuantizedForm::none;
  std::string key;     // under which it stands
  std::string method;  // for people: "gptq, 4 bits"
  std::string unpack;  // what makes numbers of them; empty where nothing is known
};

QuantizedWeights read_quantization(const ConfigKeys& keys);

// Throws Error naming the method where weights are in a form that is not read, and what to do.
void require_read_weights(const ConfigKeys& keys);

}  // namespace attnres
