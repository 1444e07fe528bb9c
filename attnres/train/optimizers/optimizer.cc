#include "attnres/train/optimizers/optimizer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <cmath>
#include <set>

#include "attnres/support/error.h"

namespace attnres {
namespace {

bool is_muons(ParameterKind kind, const TrainConfig& config) {
  return config.optimizer == "muon" && kind == ParameterKind::matrix;
}

// Those with these factors that Muon serves, or that AdamW does.
std::vector<Parameter> served(const ParameterRegistry& parameters,
                              const std::vector<UpdateFactors>& factors, const UpdateFactors& of,
                              const TrainConfig& config, bool muon) {
  std::vector<Parameter> chosen;
  for (size_t i = 0; i < factors.size(); ++i) {
    const Parameter& p = parameters.all()[i];
    if (factors[i] != of || !is_differentiated(p.kind)) continue;
    if (is_muons(p.kind, config) == muon) chosen.push_back(p);
  }
  return chosen;
}

}  // namespace

Optimizer::Optimizer(const Transformer& model, const TrainConfig& config)
    : Optimizer(model.parameters(), config,
                update_factors(model.parameters(), model.config().sublayers(), config)) {
  for (size_t i = 0; i < factors_.size(); ++i) {
    if (factors_[i].rate == 0) parameters_.all()[i].tensor.set_requires_grad(false);
  }
}

Optimizer::Optimizer(const ParameterRegistry& parameters, const TrainConfig& config,
                     std::vector<UpdateFactors> factors)
    : parameters_(parameters), factors_(std::move(factors)) {
  require(factors_.size() == parameters.all().size(), "Optimizer: {} factors for {} parameters",
          factors_.size(), parameters.all().size());
  for (const UpdateFactors& of : std::set<UpdateFactors>(factors_.begin(), factors_.end())) {
    if (of.rate == 0) continue;
    TrainConfig of_group = config;
    of_group.weight_decay *= of.decay;
    groups_.push_back(
        {.rate = of.rate,
         .adamw = AdamW(served(parameters, factors_, of, config, /*muon=*/false), of_group),
         .muon = Muon(served(parameters, factors_, of, config, /*muon=*/true), of_group,
                      parameters.group())});
  }
}

double Optimizer::gradient_norm() const {
  return std::sqrt(squared_gradient_norm([](const Parameter&) { return true; }).item<double>());
}

at::Tensor Optimizer::squared_gradient_norm(
    const std::function<bool(const Parameter&)>& counts) const {
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < factors_.size(); ++i) {
    const Parameter& p = parameters_.all()[i];
    const at::Tensor& gradient = p.tensor.grad();
    if (gradient.defined() && factors_[i].rate != 0 && counts(p)) gradients.push_back(gradient);
  }
  if (gradients.empty()) {
    return at::zeros({}, at::TensorOptions(parameters_.device()).dtype(at::kDouble));
  }
  return at::stack(at::_foreach_norm(gradients)).to(at::kDouble).square().sum();
}

void Optimizer::step(double learning_rate, double divisor) {
  ++updates;
  for (Group& group : groups_) {
    group.adamw.step(learning_rate * group.rate, updates, divisor);
    group.muon.step(learning_rate * group.rate, divisor);
  }
  clear_gradients();
}

void Optimizer::clear_gradients() {
  for (const Parameter& p : parameters_.all()) p.tensor.mutable_grad().reset();
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  const auto add = [&](const std::vector<Parameter>& parameters,
                       const std::vector<at::Tensor>& moments, const char* moment) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& p = parameters[i];
      all.emplace_back(fmt::format("{}.{}.{}", p.site, p.role, moment), moments[i]);
    }
  };
  for (const Group& group : groups_) {
    add(group.adamw.parameters(), group.adamw.first_moments(), "first_moment");
    add(group.adamw.parameters(), group.adamw.second_moments(), "second_moment");
    add(group.muon.parameters(), group.muon.moments(), "momentum");
  }
  return all;
}

}  // namespace attnres
