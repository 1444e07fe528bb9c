// A model in training in parts, filled with numbers by which each part can be known.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include <map>
#include <memory>
#include <string>

#include "attnres/support/random.h"
#include "attnres/train/parallel/parallel_place.h"
#include "attnres/train/run_folder/checkpoint.h"

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

// Calls `visit` with the name, the tensor and the parameter of each parameter and moment.
template <class Visit>
void for_each_tensor(const Training& training, const Visit& visit) {
  std::map<std::string, const Parameter*> parameters;
  for (const Parameter& p : training.model->parameters().all()) {
    const std::string name = fmt::format("{}.{}", p.site, p.role);
    parameters[name] = &p;
    visit(name, p.tensor.detach(), p);
  }
  for (const auto& [name, moment] : training.optimizer.state()) {
    visit(name, moment, *parameters.at(name.substr(0, name.rfind('.'))));
  }
}

// Those of a parameter of this training, or of its moment: this process's part.
inline at::Tensor own_numbers_of(const Training& training, const std::string& name,
                                 const at::Tensor& held, const Parameter& parameter, int save) {
  const TensorPart part = training.model->parameters().part();
  const at::Tensor whole =
      numbers_of(name, at::empty(whole_sizes(part, parameter), held.options()), save);
  return part_of_parameter(part, parameter, whole);
}

// What a rank has of a save, or one process, without a place.
inline Training filled(const Recipe& recipe, int save, const ParallelPlace* place = nullptr) {
  const ModelPart part = place == nullptr ? ModelPart() : place->part();
  auto model =
      std::make_unique<Transformer>(recipe.model, kPartsVocabulary, /*seed=*/std::nullopt,
                                    precision_of(recipe.train), at::kCPU, part.sites, part.group);
  Training training = place == nullptr ? Training(std::move(model), recipe.train)
                                       : Training(std::move(model), recipe.train, part.factors);
  for_each_tensor(training,
                  [&](const std::string& name, const at::Tensor& tensor, const Parameter& p) {
                    tensor.copy_(own_numbers_of(training, name, tensor, p, save));
                  });
  training.optimizer.updates = 10 * save;
  training.state.step = save;
  return training;
}

// The number of its tensors, or -1 where one has other numbers than those of the save.
inline int tensors_of_save(const Training& training, int save) {
  int tensors = 0;
  bool equal = training.state.step == save && training.optimizer.updates == 10 * save;
  for_each_tensor(training,
                  [&](const std::string& name, const at::Tensor& tensor, const Parameter& p) {
                    ++tensors;
                    equal = equal && tensor.equal(own_numbers_of(training, name, tensor, p, save));
                  });
  return equal ? tensors : -1;
}

}  // namespace attnres::testing
