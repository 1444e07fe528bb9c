// Parameters that files of a layout hold in another form than the model: Gemma's gains, less 1, and
// DeepSeek's maps to what rotary positions turn, whose pairs of channels lie side by side.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "attnres/formats/architectures.h"
#include "attnres/model/config.h"
#include "attnres/parameters/parameters.h"

namespace attnres {

// Both ways, of the parameter's shape; null where a file holds it as it is.
struct StoredForm {
  std::function<at::Tensor(const at::Tensor& own)> to_file = {};
  std::function<at::Tensor(const at::Tensor& stored)> from_file = {};
};
StoredForm stored_form(FileLayout layout, const ModelConfig& model, const Parameter& parameter);

}  // namespace attnres
