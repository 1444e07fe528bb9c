// In which dtypes a model keeps its numbers.
#pragma once

#include <ATen/core/ScalarType.h>

#include <string>
#include <vector>

#include "attnres/parameters/weight_format.h"

namespace attnres {

// What is learned, with its gradients' sums; and what passes between layers, which linear maps
// multiply. Norms, softmaxes, scores and losses are computed in float32 or better in any case.
// For inference the large weights may be packed (parameters/packed_matrix.h): where `weights` is
// not f32 they have no gradients, and no numbers but those that are loaded.
struct Precision {
  Precision() = default;
  Precision(at::ScalarType both) : parameters(both), activations(both) {}
  Precision(at::ScalarType of_parameters, at::ScalarType of_activations,
            WeightFormat of_weights = WeightFormat::f32)
      : parameters(of_parameters), activations(of_activations), weights(of_weights) {}

  at::ScalarType parameters = at::kFloat;
  at::ScalarType activations = at::kFloat;
  WeightFormat weights = WeightFormat::f32;
};

inline constexpr const char *kFloat32Precision = "float32", *kBfloat16Precision = "bfloat16";

// As people name it: "float32", or "bfloat16", which keeps parameters in float32. `what` names the
// setting or option. Throws UsageError on other words.
Precision parse_precision(const std::string& name, const std::string& what);

// "f32", "f16", "bf16", "q8_0", "q4_0". Throws UsageError on other words.
WeightFormat parse_weight_format(const std::string& name, const std::string& what);
const std::vector<std::string>& weight_format_names();

}  // namespace attnres
