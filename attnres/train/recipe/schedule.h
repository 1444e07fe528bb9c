// Learning-rate schedules, as a fraction of the peak rate.
#pragma once

#include "attnres/train/recipe/recipe.h"

namespace attnres {

// The rate of step `step` (1 .. steps). Linear warm-up over the first `warmup` steps, then either
//   cosine: final + (1 - final) (1 + cos(pi p)) / 2, p the part of the remaining steps done, or
//   wsd: 1, and over the last `decay_fraction` of all steps linearly down to final
//        (warmup-stable-decay, Hu et al., arXiv 2404.06395).
double learning_rate_at(const TrainConfig& train, int64_t step);

}  // namespace attnres
