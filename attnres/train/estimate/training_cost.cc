#include "attnres/train/estimate/training_cost.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>

#include "attnres/infer/evaluate.h"
#include "attnres/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "attnres/train/optimizers/muon.h"
#include "attnres/train/recipe/update_factors.h"

namespace attnres {
namespace {

// Multiply-adds of `orthogonalize` of a matrix, or of each of a stack of so many numbers: per step
// A = X X^T, A A and A X.
double newton_schulz(const std::vector<int64_t>& sizes, double numbers) {
  const double rows = static_cast<double>(sizes[sizes.size() - 2]);
  const double columns = static_cast<double>(sizes.back());
  const double count = numbers / (rows * columns);
  const double shorter = std::min(rows, columns);
  return kNewtonSchulzSteps * count * (2 * rows * columns * shorter + std::pow(shorter, 3));
}

}  // namespace

std::vector<UpdateCost> update_costs(const ParameterRegistry& parameters, int sublayers,
                                     const TrainConfig& train) {
  const std::vector<UpdateFactors> factors = update_factors(parameters, sublayers, train);
  const bool has_muon = train.optimizer == "muon";
  std::vector<UpdateCost> costs;
  for (const Parameter& p : parameters.all()) {
    const double rate = factors[costs.size()].rate, numbers = static_cast<double>(p.tensor.numel());
    UpdateCost& cost = costs.emplace_back();
    if (rate == 0 || !is_differentiated(p.kind)) continue;
    cost.gradient = numbers;
    const bool is_muons = has_muon && p.kind == ParameterKind::matrix;
    cost.moments = is_muons ? numbers : 2 * numbers;
    if (!is_muons) continue;
    std::vector<int64_t> sizes = p.tensor.sizes().vec();
    double whole = numbers;
    if (const int64_t cut = cut_dimension(p); cut >= 0) {
      sizes[cut] *= parameters.part().size;
      whole *= parameters.part().size;
    }
    // The update, one before and one after a step of Newton-Schulz.
    cost.working = 3 * whole;
    cost.flops = 2 * newton_schulz(sizes, whole);
  }
  return costs;
}

double moved_forward(const ModelCost& model, const SiteRange& sites, double mixing) {
  return kTouched / 3 * model.kept_by_sublayers(sites) + model.moved_by_mixer(sites) / mixing;
}

double logits_at_once(int64_t vocab_size, double tokens, c10::DeviceType device) {
  const auto most = static_cast<double>(tokens_in_logits(vocab_size, device));
  return 2 * static_cast<double>(vocab_size) * std::min(tokens, most);
}

double evaluation_bytes(const ModelCost& model, int64_t vocab_size, const TrainConfig& train,
                        c10::DeviceType device) {
  const auto number = static_cast<double>(c10::elementSize(precision_of(train).activations));
  const auto tokens = static_cast<double>(std::max(train.context, kEvaluationTokensABatch));
  return tokens * model.kept_in_evaluation() * number +
         4 * logits_at_once(vocab_size, tokens, device);
}

}  // namespace attnres
