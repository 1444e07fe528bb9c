#include "attnres/model/device_copy.h"

#include <ATen/core/grad_mode.h>

namespace attnres {

std::unique_ptr<Transformer> copy_to_device(const Transformer& model, at::Device device) {
  const at::NoGradGuard not_recording;
  auto copy = std::make_unique<Transformer>(model.config(), model.vocab_size(),
                                            /*seed=*/std::nullopt, model.parameters().precision(),
                                            device, model.sites(), model.parameters().group());
  for (size_t i = 0; i < model.parameters().all().size(); ++i) {
    const Parameter &from = model.parameters().all()[i], &to = copy->parameters().all()[i];
    if (to.packed.defined()) {
      at::Tensor(to.packed.bytes).copy_(from.packed.bytes);
    } else {
      at::Tensor(to.tensor).copy_(from.tensor);
    }
  }
  return copy;
}

}  // namespace attnres
