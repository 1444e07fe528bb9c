// Tensors of Kimi Linear and Kimi K3 as mlx-lm saves them, P channels of delta attention, H heads,
// E experts; beside them it calls tensors as the published files do:
//
//   self_attn.qkv_proj [3 P, D]                     q_proj, k_proj and v_proj (K3)
//   self_attn.qkv_conv.conv [3 P, K, 1]             the kernels q_conv1d, k_conv1d, v_conv1d (K3)
//   self_attn.{q,k,v}_conv.conv [P, K, 1]           one of these
//   self_attn.embed_q [H, R, key]                   kv_b_proj's rows of keys, transposed, and
//   self_attn.unembed_out [H, value, R]             those of values
//   mlp.switch_mlp.{gate,down,up}_proj [E, out, in] w1, w2, w3 of all experts
//   mlp.{gate, shared_experts, routed_expert_*}     the same under block_sparse_moe
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attnres/parameters/weight_format.h"

namespace attnres {

// A tensor under its name here, made of one of a file or of several.
struct MadeTensor {
  std::string name;
  std::vector<std::string> of;  // their names there
  // None: the only one as it is. Works on tensors without data, too.
  std::function<at::Tensor(const std::vector<at::Tensor>&)> make = {};
  // What `make` gives are rows of bytes in this format.
  std::optional<WeightFormat> packed = {};
};

// What a tensor of a file holds, or is a part of; nothing where the file calls it as others do, and
// of unembed_out, which embed_q tells. Throws Error on a shape that does not go with the name.
std::vector<MadeTensor> made_of_mlx_tensor(const std::string& name,
                                           const std::vector<int64_t>& shape);

}  // namespace attnres
