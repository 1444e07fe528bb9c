// Models on the pretend device.
#pragma once

#include <ATen/core/grad_mode.h>

#include "attnres/model/transformer.h"
#include "tests/device/pretend_device.h"
#include "tests/model/kinds_of_models.h"

namespace attnres::testing {

// The same model there, packed weights as they are.
inline Transformer on_pretend_device(const Transformer& model) {
  const at::NoGradGuard not_recording;
  Transformer copy(model.config(), model.vocab_size(), /*seed=*/std::nullopt,
                   model.parameters().precision(), pretend_device());
  for (size_t i = 0; i < model.parameters().all().size(); ++i) {
    const Parameter &from = model.parameters().all()[i], &to = copy.parameters().all()[i];
    if (to.packed.defined()) {
      at::Tensor(to.packed.bytes).copy_(from.packed.bytes);
    } else {
      at::Tensor(to.tensor).copy_(from.tensor);
    }
  }
  return copy;
}

}  // namespace attnres::testing
