#include "attnres/model/retrofit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/sub.h>

#include <cmath>

#include "attnres/support/error.h"

namespace attnres {

namespace {

// Every parameter of the model is copied; those that only the new one has start as ever.
std::unique_ptr<Transformer> copied_into(const Transformer& model, const DepthMixing& mixing) {
  ModelConfig config = model.config();
  config.depth_mixing = mixing;
  auto other = std::make_unique<Transformer>(config, model.vocab_size(), /*seed=*/0,
                                             model.parameters().precision());
  const at::NoGradGuard no_grad;
  for (const Parameter& old : model.parameters().all()) {
    const Parameter* parameter = other->parameters().find(old.site, old.role);
    require(parameter != nullptr && parameter->tensor.sizes() == old.tensor.sizes(),
            "depth mixing {}: it has no place for {} of site {}", mixing.name(), old.role,
            old.site);
    at::Tensor tensor = parameter->tensor;
    tensor.copy_(old.tensor);
  }
  return other;
}

}  // namespace

void require_residual(const Transformer& model) {
  const ModelConfig& config = model.config();
  require(config.is_residual(),
          "retrofit: this model's depth mixing is {}; only a model with plain residual connections "
          "can become another without changing what it computes",
          config.depth_mixing.name());
}

std::unique_ptr<Transformer> retrofit(const Transformer& residual, const DepthMixing& mixing) {
  require_residual(residual);
  return copied_into(residual, mixing);
}

std::unique_ptr<Transformer> with_depth_mixing(const Transformer& model,
                                               const DepthMixing& mixing) {
  auto other = copied_into(model, mixing);
  require(other->parameters().count() == model.parameters().count(),
          "depth mixing {}: it has parameters that the model has not", mixing.name());
  return other;
}

double largest_difference(const Transformer& a, const Transformer& b, int64_t tokens) {
  at::Tensor ids_BT = at::empty({1, tokens}, at::kLong);
  const RandomStream random(/*seed=*/1, "retrofit");
  for (int64_t i = 0; i < tokens; ++i) {
    ids_BT.mutable_data_ptr<int64_t>()[i] =
        static_cast<int64_t>(random.below(static_cast<uint64_t>(a.vocab_size()), i));
  }
  const at::Tensor targets_BT = at::roll(ids_BT, -1, 1);
  const double difference =
      at::sub(a.log_probabilities(ids_BT, targets_BT), b.log_probabilities(ids_BT, targets_BT))
          .abs()
          .max()
          .item<double>();
  require(std::isfinite(difference),
          "the model's log-probabilities of {} random tokens are not finite; its weights are "
          "damaged, or training diverged",
          tokens);
  return difference;
}

}  // namespace attnres
