// What moves a model's parameters along their gradients. The kind of a parameter and
// `train.optimizer` decide how:
//
//                 "adamw"   "muon"
//   matrix        AdamW     Muon
//   router_bias   -         -         moved by the experts' load instead (expert_balance.h)
//   all others    AdamW     AdamW
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "attnres/support/parameters.h"
#include "attnres/train/adamw.h"
#include "attnres/train/muon.h"
#include "attnres/train/recipe.h"

namespace attnres {

class Optimizer {
 public:
  // The parameters must outlive the optimizer.
  Optimizer(const ParameterRegistry& parameters, const TrainConfig& config);

  // The L2 norm of all gradients together, in float64. Parameters without a gradient count as zero.
  double gradient_norm() const;
  // Updates every parameter along its gradient over `divisor`, and clears the gradients.
  void step(double learning_rate, double divisor);
  void clear_gradients();

  // Number of updates done; assigned to when a run resumes.
  int64_t updates = 0;
  // The moments, named by site, role and moment ("3.q_proj.first_moment"). They are the ones in
  // use: what is copied into them is what the run goes on with.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

 private:
  const ParameterRegistry& parameters_;
  AdamW adamw_;
  Muon muon_;
};

}  // namespace attnres
