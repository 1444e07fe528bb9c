#include "attnres/layers/linear.h"

#include "attnres/ops/tensors.h"

namespace attnres {

Linear::Linear(ParameterRegistry& parameters, int site, int64_t inputs, const MatrixRole& role)
    : weight_(parameters.add(site, role.role, ParameterKind::matrix, {role.outputs, inputs},
                             role.init, role.shard)) {}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  return linear_map(x, weight_for(x));
}

MapWeight Linear::weight_for(const at::Tensor& x) const {
  return {weight_.whole(), weight_.values(x.scalar_type())};
}

LinearGroup::LinearGroup(ParameterRegistry& parameters, int site, int64_t inputs,
                         const std::vector<MatrixRole>& roles) {
  const at::Tensor joined = parameters.add_joined(site, inputs, roles);
  for (const MatrixRole& role : roles) {
    parameters_.push_back(parameters.find(site, role.role)->tensor);
    outputs_.push_back(role.outputs);
  }
  joined_ = ProductWeight(joined, parameters_);
}

std::vector<MapWeight> LinearGroup::weights_for(const at::Tensor& x,
                                                const at::Tensor& joined) const {
  if (x.scalar_type() == joined_.whole().scalar_type()) {
    return {parameters_.begin(), parameters_.end()};
  }
  const std::vector<at::Tensor> copies = joined.split_with_sizes(outputs_);
  std::vector<MapWeight> weights;
  for (size_t i = 0; i < parameters_.size(); ++i) weights.emplace_back(parameters_[i], copies[i]);
  return weights;
}

std::vector<at::Tensor> LinearGroup::operator()(const at::Tensor& x,
                                                const std::vector<at::Tensor>& own_inputs) const {
  const at::Tensor joined = joined_.values(x.scalar_type());
  const std::vector<MapWeight> weights = weights_for(x, joined);
  if (!own_inputs.empty()) {
    std::vector<at::Tensor> outputs;
    for (size_t i = 0; i < weights.size(); ++i) {
      outputs.push_back(linear_map(i < own_inputs.size() ? own_inputs[i] : x, weights[i]));
    }
    return outputs;
  }
  // Of one token, as in decoding, the parts of a joined output are contiguous. Of more they are
  // not, and what reads them would copy them.
  const bool recording = records(x) || records(parameters_);
  if (recording || tokens_of(x) > 1) return linear_maps(x, weights);
  return linear_map(x, joined).split_with_sizes(outputs_, -1);
}

}  // namespace attnres
