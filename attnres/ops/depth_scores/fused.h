// What the operation shares with its kernels on a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace attnres {

// Scores [N, ..., H]; the sources' reciprocal RMS [N, ...], without numbers where keys are not
// normalised.
using DepthScoresResult = std::tuple<at::Tensor, at::Tensor>;
DepthScoresResult allocate_depth_scores(at::TensorList sources, bool normalised, int64_t heads);

// The gradients of the query and of the keys' gain, without numbers where there is no gain.
using DepthScoresGradients = std::tuple<at::Tensor, at::Tensor>;

}  // namespace attnres
