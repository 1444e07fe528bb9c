// In which dtypes a model keeps its numbers.
#pragma once

#include <ATen/core/ScalarType.h>

#include <string>

namespace attnres {

// What is learned, with its gradients' sums; and what passes between layers, which linear maps
// multiply. Norms, softmaxes, scores and losses are computed in float32 or better in any case.
struct Precision {
  Precision() = default;
  Precision(at::ScalarType both) : parameters(both), activations(both) {}
  Precision(at::ScalarType of_parameters, at::ScalarType of_activations)
      : parameters(of_parameters), activations(of_activations) {}

  at::ScalarType parameters = at::kFloat;
  at::ScalarType activations = at::kFloat;
};

inline constexpr const char *kFloat32Precision = "float32", *kBfloat16Precision = "bfloat16";

// As people name it: "float32", or "bfloat16", which keeps parameters in float32. `what` names the
// setting or option. Throws UsageError on other words.
Precision parse_precision(const std::string& name, const std::string& what);

}  // namespace attnres
