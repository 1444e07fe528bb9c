#include "attnres/layers/linear.h"

#include "attnres/ops/tensors.h"

namespace attnres {

Linear::Linear(ParameterRegistry& parameters, int site, int64_t inputs, const MatrixRole& role)
    : weight_(parameters.add_weight(site, role.role, ParameterKind::matrix, {role.outputs, inputs},
                                    role.init, role.shard)) {}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  return linear_map(x, weight_.for_map_of(x));
}

LinearGroup::LinearGroup(ParameterRegistry& parameters, int site, int64_t inputs,
                         const std::vector<MatrixRole>& roles) {
  const ParameterRegistry::Joined joined = parameters.add_joined(site, inputs, roles);
  for (const MatrixRole& role : roles) {
    parameters_.push_back(parameters.find(site, role.role)->tensor);
    outputs_.push_back(parameters_.back().size(0));
  }
  joined_ = ProductWeight(joined, parameters_);
}

std::vector<MapWeight> LinearGroup::parts_of(const MapWeight& joined, const at::Tensor& x) const {
  std::vector<MapWeight> weights;
  if (joined.packed.defined()) {
    int64_t first = 0;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      PackedMatrix part = joined.packed;
      part.bytes = part.bytes.narrow(0, first, outputs_[i]);
      weights.emplace_back(parameters_[i], part);
      first += outputs_[i];
    }
    return weights;
  }
  if (x.scalar_type() == joined_.whole().scalar_type()) {
    return {parameters_.begin(), parameters_.end()};
  }
  const std::vector<at::Tensor> copies = joined.values.split_with_sizes(outputs_);
  for (size_t i = 0; i < parameters_.size(); ++i) weights.emplace_back(parameters_[i], copies[i]);
  return weights;
}

std::vector<at::Tensor> LinearGroup::operator()(const at::Tensor& x,
                                                const std::vector<at::Tensor>& own_inputs) const {
  const MapWeight joined = joined_.for_map_of(x);
  const std::vector<MapWeight> weights = parts_of(joined, x);
  if (!own_inputs.empty()) {
    std::vector<at::Tensor> outputs;
    for (size_t i = 0; i < weights.size(); ++i) {
      outputs.push_back(linear_map(i < own_inputs.size() ? own_inputs[i] : x, weights[i]));
    }
    return outputs;
  }
  // The parts of one token's joined output, as in decoding, are contiguous. Those of more tokens
  // are not, and what reads them would copy them.
  const bool recording = records(x) || records(parameters_);
  if (recording || tokens_of(x) > 1) return linear_maps(x, weights);
  return linear_map(x, joined).split_with_sizes(outputs_, -1);
}

}  // namespace attnres
