#include "attnres/layers/linear.h"

#include "attnres/ops/matmul/matmul.h"
#include "attnres/ops/tensors.h"

namespace attnres {

Linear::Linear(ParameterRegistry& parameters, int site, int64_t inputs, const MatrixRole& role)
    : weight_(parameters.add(site, role.role, ParameterKind::matrix, {role.outputs, inputs},
                             role.init, role.shard)) {}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  return linear_map(x, weight_);
}

LinearGroup::LinearGroup(ParameterRegistry& parameters, int site, int64_t inputs,
                         const std::vector<MatrixRole>& roles)
    : joined_(parameters.add_joined(site, inputs, roles)) {
  for (const MatrixRole& role : roles) {
    weights_.push_back(parameters.find(site, role.role)->tensor);
    outputs_.push_back(role.outputs);
  }
}

std::vector<at::Tensor> LinearGroup::operator()(const at::Tensor& x,
                                                const std::vector<at::Tensor>& own_inputs) const {
  if (!own_inputs.empty()) {
    std::vector<at::Tensor> outputs;
    for (size_t i = 0; i < weights_.size(); ++i) {
      outputs.push_back(linear_map(i < own_inputs.size() ? own_inputs[i] : x, weights_[i]));
    }
    return outputs;
  }
  // Of one token, as in decoding, the parts of a joined output are contiguous. Of more they are
  // not, and what reads them would copy them.
  const bool recording = records(x) || records(weights_);
  if (recording || tokens_of(x) > 1) return linear_maps(x, weights_);
  return linear_map(x, joined_).split_with_sizes(outputs_, -1);
}

}  // namespace attnres
