// Weights that published files hold quantized, in the form in which packed weights have them
// (parameters/weight_format.h): rows of bytes of the same numbers in another order.
//
//   NAME.weight         F8_E4M3 [N, K]            FP8 in blocks (DeepSeek-V3, Kimi K2):
//   NAME.weight_scale_inv  F32 [N/128, K/128]     a number times its block's is the weight
//   NAME.weight_packed  U8 [N, K/2]               MXFP4 of compressed-tensors (Kimi K3): E2M1, the
//   NAME.weight_scale   U8 [N, K/32]              first of two in the lower bits, and E8M0 scales
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "attnres/formats/tensor_files.h"
#include "attnres/pretrained/mlx_tensors.h"

namespace attnres {

// NAME.weight, where this is the first of its two tensors. FP8 rows that are no multiple of 128
// numbers are made float32. Throws Error where the two do not go together.
std::optional<MadeTensor> made_of_quantized(const std::string& name, const TensorFiles& files);

// Rows as packed weights have them, of two tensors: numbers [N, K/2] and scales [N, K/32].
at::Tensor mxfp4_rows(const std::vector<at::Tensor>& of);

}  // namespace attnres
