// What moves a model's parameters along their gradients. The kind of a parameter and
// `train.optimizer` decide how:
//
//                 "adamw"   "muon"
//   matrix        AdamW     Muon
//   router_bias   -         -         moved by the experts' load instead (expert_balance.h)
//   all others    AdamW     AdamW
//
// Each at the learning rate and weight decay times its factors in `train.rates` and `train.decays`
// (update_factors.h); what has a rate of 0 stays as it is, without gradient and moments.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "attnres/model/transformer.h"
#include "attnres/parameters/parameters.h"
#include "attnres/train/optimizers/adamw.h"
#include "attnres/train/optimizers/muon.h"
#include "attnres/train/recipe/recipe.h"
#include "attnres/train/recipe/update_factors.h"

namespace attnres {

class Optimizer {
 public:
  // For a whole model, which must outlive the optimizer, and whose parameters of rate 0 require no
  // gradient from now on. Throws UsageError as update_factors does.
  Optimizer(const Transformer& model, const TrainConfig& config);
  // With the factors of each parameter given, in their order; those of what another process updates
  // may have a rate of 0.
  Optimizer(const ParameterRegistry& parameters, const TrainConfig& config,
            std::vector<UpdateFactors> factors);

  // The L2 norm of all gradients together, in float64, but those of what stays as it is. Parameters
  // without a gradient count as zero.
  double gradient_norm() const;
  // Its square over those parameters that `counts` says yes to: a scalar, float64 on their device.
  at::Tensor squared_gradient_norm(const std::function<bool(const Parameter&)>& counts) const;
  // Updates every parameter along its gradient over `divisor`, and clears the gradients.
  void step(double learning_rate, double divisor);
  void clear_gradients();

  // Number of updates done; assigned to when a run resumes.
  int64_t updates = 0;
  // The moments, named by site, role and moment ("3.q_proj.first_moment"). They are the ones in
  // use: what is copied into them is what the run goes on with.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

 private:
  // The parameters that have the same factors.
  struct Group {
    double rate;
    AdamW adamw;
    Muon muon;
  };

  const ParameterRegistry& parameters_;
  std::vector<UpdateFactors> factors_;
  std::vector<Group> groups_;
};

}  // namespace attnres
