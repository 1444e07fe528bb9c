#include "attnres/train/training_cost.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>

#include "attnres/infer/evaluate.h"
#include "attnres/train/learning_rates.h"
#include "attnres/train/muon.h"
#include "attnres/train/probe.h"

namespace attnres {
namespace {

// Multiply-adds of `orthogonalize` of a matrix, or of each of a stack: per step A = X X^T, A A and
// A X.
double newton_schulz(const at::Tensor& matrix) {
  const double rows = static_cast<double>(matrix.size(-2));
  const double columns = static_cast<double>(matrix.size(-1));
  const double count = static_cast<double>(matrix.numel()) / (rows * columns);
  const double shorter = std::min(rows, columns);
  return kNewtonSchulzSteps * count * (2 * rows * columns * shorter + std::pow(shorter, 3));
}

}  // namespace

std::vector<UpdateCost> update_costs(const ParameterRegistry& parameters, int sublayers,
                                     const TrainConfig& train) {
  const std::vector<double> factors = rate_factors(parameters, sublayers, train.rates);
  const bool has_muon = train.optimizer == "muon";
  std::vector<UpdateCost> costs;
  for (const Parameter& p : parameters.all()) {
    const double factor = factors[costs.size()], numbers = static_cast<double>(p.tensor.numel());
    UpdateCost& cost = costs.emplace_back();
    if (factor == 0 || !is_differentiated(p.kind)) continue;
    const bool is_muons = has_muon && p.kind == ParameterKind::matrix;
    cost.moments = is_muons ? numbers : 2 * numbers;
    // The update, one before and one after a step of Newton-Schulz.
    cost.working = is_muons ? 3 * numbers : 0;
    cost.flops = is_muons ? 2 * newton_schulz(p.tensor) : 0;
  }
  return costs;
}

double logits_at_once(double vocab_size, double tokens) {
  constexpr double kLogits = 1 << 22;
  return 2 * vocab_size * std::min(tokens, std::max(64.0, kLogits / vocab_size));
}

double evaluation_bytes(const ModelCost& model, int64_t vocab_size, const TrainConfig& train) {
  const auto number = static_cast<double>(c10::elementSize(precision_of(train).activations));
  const auto context = static_cast<double>(train.context);
  const auto pass = [&](double tokens, double kept) {
    return tokens * kept * number + 4 * logits_at_once(static_cast<double>(vocab_size), tokens);
  };
  return std::max(
      pass(kProbeWindows * context, model.kept(/*recompute=*/false)) + 4 * 2 * model.head(),
      pass(std::max(context, static_cast<double>(kEvaluationTokensABatch)),
           model.kept_in_evaluation()));
}

}  // namespace attnres
