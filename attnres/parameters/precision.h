// In which dtypes a model keeps its numbers.
#pragma once

#include <ATen/core/ScalarType.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attnres/parameters/weight_format.h"

namespace attnres {

// Those of a model's weights: one of all, or of single ones their own, by site and role, as a file
// has them that mixes formats.
class WeightFormats {
 public:
  using OfWeights = std::map<std::pair<int, std::string>, WeightFormat>;

  WeightFormats(WeightFormat all = WeightFormat::f32) : all_(all) {}
  explicit WeightFormats(OfWeights own) : own_(std::make_shared<const OfWeights>(std::move(own))) {}

  WeightFormat of(int site, const std::string& role) const;
  // That of all, or "mixed".
  std::string name() const;

 private:
  WeightFormat all_ = WeightFormat::f32;  // of those that have none of their own
  std::shared_ptr<const OfWeights> own_;  // null: all have the same
};

// What is learned, with its gradients' sums; and what passes between layers, which linear maps
// multiply. Norms, softmaxes, scores and losses are computed in float32 or better in any case.
// For inference the large weights may be packed (parameters/packed_matrix.h): those that are not
// f32 have no gradients, and no numbers but those that are loaded.
struct Precision {
  Precision() = default;
  Precision(at::ScalarType both) : parameters(both), activations(both) {}
  Precision(at::ScalarType of_parameters, at::ScalarType of_activations,
            WeightFormats of_weights = {})
      : parameters(of_parameters), activations(of_activations), weights(std::move(of_weights)) {}

  at::ScalarType parameters = at::kFloat;
  at::ScalarType activations = at::kFloat;
  WeightFormats weights = {};
};

inline constexpr const char *kFloat32Precision = "float32", *kBfloat16Precision = "bfloat16";

// As people name it: "float32", or "bfloat16", which keeps parameters in float32. `what` names the
// setting or option. Throws UsageError on other words.
Precision parse_precision(const std::string& name, const std::string& what);

// A name of kWeightFormats. Throws UsageError on other words, and on formats that numbers cannot be
// rounded to here.
WeightFormat parse_weight_format(const std::string& name, const std::string& what);
// Of those that they can.
const std::vector<std::string>& weight_format_names();

}  // namespace attnres
