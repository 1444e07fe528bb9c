#include "attnres/train/optimizer.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <fmt/core.h>

#include <cmath>

namespace attnres {
namespace {

bool is_muons(ParameterKind kind, const TrainConfig& config) {
  return config.optimizer == "muon" && kind == ParameterKind::matrix;
}

std::vector<Parameter> served_by_muon(const ParameterRegistry& parameters,
                                      const TrainConfig& config, bool muon) {
  std::vector<Parameter> served;
  for (const Parameter& p : parameters.all()) {
    if (is_differentiated(p.kind) && is_muons(p.kind, config) == muon) served.push_back(p);
  }
  return served;
}

}  // namespace

Optimizer::Optimizer(const ParameterRegistry& parameters, const TrainConfig& config)
    : parameters_(parameters),
      adamw_(served_by_muon(parameters, config, false), config),
      muon_(served_by_muon(parameters, config, true), config) {}

double Optimizer::gradient_norm() const {
  double sum = 0;
  for (const Parameter& p : parameters_.all()) {
    if (!p.tensor.grad().defined()) continue;
    const double norm = at::linalg_vector_norm(p.tensor.grad()).item<double>();
    sum += norm * norm;
  }
  return std::sqrt(sum);
}

void Optimizer::step(double learning_rate, double divisor) {
  ++updates;
  adamw_.step(learning_rate, updates, divisor);
  muon_.step(learning_rate, divisor);
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
  add(adamw_.parameters(), adamw_.first_moments(), "first_moment");
  add(adamw_.parameters(), adamw_.second_moments(), "second_moment");
  add(muon_.parameters(), muon_.moments(), "momentum");
  return all;
}

}  // namespace attnres
