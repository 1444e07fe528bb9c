// A model in training in parts, filled with numbers by which each part can be known.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <fmt/core.h>

#include <memory>
#include <string>

#include "attnres/support/random.h"
#include "attnres/train/checkpoint.h"
#include "attnres/train/parallel_place.h"

namespace attnres::testing {

inline constexpr int64_t kPartsVocabulary = 256;

// Its numbers, of a name and a save.
inline at::Tensor numbers_of(const std::string& name, const at::Tensor& like, int save) {
  const double first = static_cast<double>(hash_bytes(name) % 1000 + 1000 * save);
  return at::arange(like.numel(), like.options().requires_grad(false))
      .mul_(1e-3)
      .add_(first)
      .view(like.sizes());
}

template <class Visit>
void for_each_tensor(const Training& training, const Visit& visit) {
  for (const Parameter& p : training.model->parameters().all()) {
    visit(fmt::format("{}.{}", p.site, p.role), p.tensor.detach());
  }
  for (const auto& [name, moment] : training.optimizer.state()) visit(name, moment);
}

// What a rank has of a save, or one process, without a place.
inline Training filled(const Recipe& recipe, int save, const ParallelPlace* place = nullptr) {
  auto model = std::make_unique<Transformer>(recipe.model, kPartsVocabulary, /*seed=*/std::nullopt,
                                             precision_of(recipe.train), at::kCPU,
                                             place == nullptr ? SiteSet() : place->sites());
  Training training = place == nullptr
                          ? Training(std::move(model), recipe.train)
                          : Training(std::move(model), recipe.train, place->rate_factors());
  for_each_tensor(training, [&](const std::string& name, const at::Tensor& tensor) {
    tensor.copy_(numbers_of(name, tensor, save));
  });
  training.optimizer.updates = 10 * save;
  training.state.step = save;
  return training;
}

// The number of its tensors, or -1 where one has other numbers than those of the save.
inline int tensors_of_save(const Training& training, int save) {
  int tensors = 0;
  bool equal = training.state.step == save && training.optimizer.updates == 10 * save;
  for_each_tensor(training, [&](const std::string& name, const at::Tensor& tensor) {
    ++tensors;
    equal = equal && tensor.equal(numbers_of(name, tensor, save));
  });
  return equal ? tensors : -1;
}

}  // namespace attnres::testing
