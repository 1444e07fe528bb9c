#include "attnres/model/merge_low_rank.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>

#include "attnres/support/error.h"

namespace attnres {

std::unique_ptr<Transformer> merge_low_rank(const Transformer& model) {
  ModelConfig config = model.config();
  config.lora = {};
  const ParameterRegistry& parameters = model.parameters();
  auto merged =
      std::make_unique<Transformer>(config, model.vocab_size(), /*seed=*/std::nullopt,
                                    parameters.precision(), parameters.device(), model.sites());
  const at::NoGradGuard not_recording;
  for (const Parameter& to : merged->parameters().all()) {
    const Parameter& from = *parameters.find(to.site, to.role);
    const Parameter* in = parameters.find(to.site, to.role + kLowRankIn);
    if (in == nullptr) {
      to.packed.defined() ? at::Tensor(to.packed.bytes).copy_(from.packed.bytes)
                          : at::Tensor(to.tensor).copy_(from.tensor);
      continue;
    }
    require(!from.packed.defined(),
            "{} of site {} is packed: a map of low rank is added to it where its numbers are "
            "unpacked",
            to.role, to.site);
    const Parameter& out = *parameters.find(to.site, to.role + kLowRankOut);
    const at::Tensor product = at::mm(out.tensor.to(at::kDouble), in->tensor.to(at::kDouble));
    at::Tensor(to.tensor).copy_(
        at::add(from.tensor.to(at::kDouble), product, model.config().lora.scale()));
  }
  return merged;
}

}  // namespace attnres
