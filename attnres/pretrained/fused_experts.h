// The experts of gpt-oss' files, whose maps lie in one tensor for all experts of a layer, those of
// gate and up row by row in turns:
//
//   experts.gate_up_proj_blocks  U8 [E, 2F, D/32, 16]  MXFP4, the first of two in the lower bits,
//   experts.gate_up_proj_scales  U8 [E, 2F, D/32]      with E8M0 scales; or
//   experts.gate_up_proj         [E, D, 2F]            plain numbers, of which inputs are the rows
//   experts.gate_up_proj_bias    [E, 2F]
//   experts.down_proj..          the same of [E, D, F/32, 16], [E, F, D] and [E, D]
#pragma once

#include <string>
#include <vector>

#include "attnres/formats/tensor_files.h"
#include "attnres/pretrained/mlx_tensors.h"

namespace attnres {

// Every expert's part of such a tensor; nothing of another name. Throws Error where blocks and
// scales do not go together.
std::vector<MadeTensor> made_of_fused_experts(const std::string& name, const TensorFiles& files);

}  // namespace attnres
