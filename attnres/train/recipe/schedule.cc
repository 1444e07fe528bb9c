#include "attnres/train/recipe/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace attnres {

double learning_rate_at(const TrainConfig& train, int64_t step) {
  if (step <= train.warmup) {
    return train.learning_rate * static_cast<double>(step) / static_cast<double>(train.warmup);
  }
  const double final = train.final_fraction;
  const double steps = static_cast<double>(train.steps);
  double fraction = 1;
  if (train.schedule == "cosine") {
    const double warmup = static_cast<double>(train.warmup);
    const double done = (static_cast<double>(step) - warmup) / std::max(1.0, steps - warmup);
    fraction = final + (1 - final) * 0.5 * (1 + std::cos(std::numbers::pi * done));
  } else if (const double decay_steps = train.decay_fraction * steps; decay_steps > 0) {
    const double left = (steps - static_cast<double>(step)) / decay_steps;
    fraction = final + (1 - final) * std::min(1.0, left);
  }
  return train.learning_rate * fraction;
}

}  // namespace attnres
