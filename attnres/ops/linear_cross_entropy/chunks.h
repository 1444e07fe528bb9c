// What linear_cross_entropy does with one chunk of tokens, which each device has its own way for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "attnres/ops/device_table.h"

namespace attnres {

// hidden weight^T [C, V], float32 or float64. `copy` is the weight in hidden's dtype.
at::Tensor chunk_logits_composed(const at::Tensor& hidden_CD, const at::Tensor& weight_VD,
                                 const at::Tensor& copy_VD);

// Writes each token's loss to nll [C], 0 where it is left out. With a scale, returns the gradient
// scale (softmax(logits) - onehot(target)) [C, V] in `dtype`. Uses the logits' memory.
at::Tensor chunk_loss_composed(const at::Tensor& logits_CV, const at::Tensor& targets_C,
                               std::optional<double> scale, at::ScalarType dtype,
                               const at::Tensor& nll_C);

extern DeviceTable<decltype(chunk_logits_composed)> chunk_logits_table;
extern DeviceTable<decltype(chunk_loss_composed)> chunk_loss_table;

}  // namespace attnres
