// Scaling curves: power laws fitted to the losses of runs at several budgets of compute, as in
// Figure 4 and equation 16 of arXiv 2603.15031.
#pragma once

#include <cstdint>
#include <vector>

#include "attnres/report/statistics.h"

namespace attnres {

// L = A C^-alpha, with C in any one unit of compute: A is the loss at C = 1.
struct PowerLaw {
  double a = 0, alpha = 0;

  double loss(double compute) const;
  double compute(double loss) const;  // that gives this loss
};

// One run. Several at one budget are as many points.
struct ScalingPoint {
  double compute = 0, loss = 0;
};

struct PowerLawFit {
  PowerLaw law;
  Interval a, alpha;  // 95 %
};

// Least squares in log-log: ln L = ln A - alpha ln C. The intervals are of a percentile bootstrap
// that keeps the budgets, which were chosen, and resamples the residuals, widened by sqrt(n/(n-2))
// for the two parameters fitted. With few points they are rough, and rather too narrow. Equal
// arguments give equal intervals.
// Throws Error for fewer than three different budgets, or for a compute or a loss that is not
// above 0.
PowerLawFit fit_power_law(const std::vector<ScalingPoint>& points, uint64_t seed);

// How many times the compute the baseline needs for the loss that the points' fit has at a budget,
// with the 95 % interval of a bootstrap of both fits.
struct ComputeAdvantage {
  double factor = 1;
  Interval interval;
};

// Whether the n-th points of both are of one size and seed, and so share part of their chance: then
// their residuals are drawn together, and what they share cancels. Else each fit has its own draws.
enum class ScalingPairs { no, yes };

// Throws Error as fit_power_law does, for a budget that is not above 0, for pairs of unequal
// number, and where the baseline's loss does not fall with compute.
ComputeAdvantage compute_advantage(const std::vector<ScalingPoint>& points,
                                   const std::vector<ScalingPoint>& baseline, double budget,
                                   uint64_t seed, ScalingPairs pairs = ScalingPairs::no);

}  // namespace attnres
