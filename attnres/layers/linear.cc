#include "attnres/layers/linear.h"

#include "attnres/ops/tensors.h"

namespace attnres {

Linear::Linear(ParameterRegistry& parameters, int site, int64_t inputs, const MatrixRole& role)
    : weight_(parameters.add_weight(site, role.role, ParameterKind::matrix, {role.outputs, inputs},
                                    role.init, role.shard)),
      beside_(parameters, site, inputs, role),
      merged_(std::make_shared<VersionedCopy>()) {}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  return beside_.added_to(linear_map(x, weight_.for_map_of(x)), x);
}

MapWeight Linear::weight_for(const at::Tensor& x) const {
  const at::ScalarType dtype = x.scalar_type();
  if (!beside_.defined()) return {weight_.whole(), weight_.values(dtype)};
  const auto merged = [&] { return beside_.merged_into(weight_.values(dtype)); };
  if (beside_.records()) return merged();
  return merged_->get(dtype, weight_.version() + beside_.version(), merged);
}

LinearGroup::LinearGroup(ParameterRegistry& parameters, int site, int64_t inputs,
                         const std::vector<MatrixRole>& roles) {
  const at::Tensor joined = parameters.add_joined(site, inputs, roles);
  for (const MatrixRole& role : roles) {
    const Parameter* parameter = parameters.find(site, role.role);
    parameters_.push_back(parameter->tensor);
    outputs_.push_back(parameter->tensor.size(0));
    if (!joined.defined()) single_.emplace_back(parameter);
    LowRankMap beside(parameters, site, inputs, role);
    if (beside.defined()) beside_.resize(roles.size());
    if (beside.defined()) beside_[outputs_.size() - 1] = std::move(beside);
  }
  if (joined.defined()) joined_ = ProductWeight(joined, parameters_);
}

std::vector<MapWeight> LinearGroup::weights_for(const at::Tensor& x) const {
  std::vector<MapWeight> weights;
  if (!single_.empty()) {
    for (const ProductWeight& weight : single_) weights.push_back(weight.for_map_of(x));
    return weights;
  }
  if (x.scalar_type() == joined_.whole().scalar_type()) {
    return {parameters_.begin(), parameters_.end()};
  }
  const std::vector<at::Tensor> copies = joined_.values(x.scalar_type()).split_with_sizes(outputs_);
  for (size_t i = 0; i < parameters_.size(); ++i) weights.emplace_back(parameters_[i], copies[i]);
  return weights;
}

std::vector<at::Tensor> LinearGroup::operator()(const at::Tensor& x,
                                                const std::vector<at::Tensor>& own_inputs) const {
  std::vector<at::Tensor> outputs = maps(x, own_inputs);
  for (size_t i = 0; i < beside_.size(); ++i) {
    outputs[i] = beside_[i].added_to(outputs[i], i < own_inputs.size() ? own_inputs[i] : x);
  }
  return outputs;
}

std::vector<at::Tensor> LinearGroup::maps(const at::Tensor& x,
                                          const std::vector<at::Tensor>& own_inputs) const {
  if (!own_inputs.empty()) {
    const std::vector<MapWeight> weights = weights_for(x);
    std::vector<at::Tensor> outputs;
    for (size_t i = 0; i < weights.size(); ++i) {
      outputs.push_back(linear_map(i < own_inputs.size() ? own_inputs[i] : x, weights[i]));
    }
    return outputs;
  }
  // The parts of one token's joined output, as in decoding, are contiguous. Those of more tokens
  // are not, and what reads them would copy them.
  const bool recording = records(x) || records(parameters_);
  if (recording || tokens_of(x) > 1 || !single_.empty()) return linear_maps(x, weights_for(x));
  return linear_map(x, joined_.for_map_of(x)).split_with_sizes(outputs_, -1);
}

}  // namespace attnres
