#include "attnres/report/power_law.h"

#include <cmath>
#include <set>

#include "attnres/support/error.h"

namespace attnres {
namespace {

void check_points(const std::vector<ScalingPoint>& points) {
  std::set<double> budgets;
  for (const ScalingPoint& point : points) {
    require(point.compute > 0 && point.loss > 0 && std::isfinite(point.compute * point.loss),
            "power law: expected a compute and a loss above 0, got {} and {}", point.compute,
            point.loss);
    budgets.insert(std::log(point.compute));
  }
  require(budgets.size() >= 3,
          "power law: {} points at {} different budgets are too few to fit: two budgets fit any "
          "curve, give three at least",
          points.size(), budgets.size());
}

PowerLaw least_squares(const std::vector<ScalingPoint>& points) {
  const double n = double(points.size());
  double x_mean = 0, y_mean = 0;
  for (const ScalingPoint& point : points) {
    x_mean += std::log(point.compute) / n;
    y_mean += std::log(point.loss) / n;
  }
  double xx = 0, xy = 0;
  for (const ScalingPoint& point : points) {
    const double x = std::log(point.compute) - x_mean;
    xx += x * x;
    xy += x * (std::log(point.loss) - y_mean);
  }
  const double slope = xy / xx;
  return {std::exp(y_mean - slope * x_mean), -slope};
}

// Fits of what the law says at the points' budgets, times residuals drawn from theirs.
class ResidualBootstrap {
 public:
  explicit ResidualBootstrap(const std::vector<ScalingPoint>& points)
      : points_(points), law_(least_squares(points)) {
    const double n = double(points.size());
    for (const ScalingPoint& point : points) {
      residuals_.push_back(std::log(point.loss / law_.loss(point.compute)) *
                           std::sqrt(n / (n - 2)));
    }
  }

  const PowerLaw& law() const { return law_; }

  PowerLaw refit(const std::vector<size_t>& drawn) const {
    std::vector<ScalingPoint> points = points_;
    for (size_t i = 0; i < points.size(); ++i) {
      points[i].loss = law_.loss(points[i].compute) * std::exp(residuals_[drawn[i]]);
    }
    return least_squares(points);
  }

  size_t count() const { return points_.size(); }

 private:
  std::vector<ScalingPoint> points_;
  PowerLaw law_;
  std::vector<double> residuals_;  // in ln L
};

}  // namespace

double PowerLaw::loss(double compute) const {
  return a * std::pow(compute, -alpha);
}

double PowerLaw::compute(double loss) const {
  return std::pow(a / loss, 1 / alpha);
}

PowerLawFit fit_power_law(const std::vector<ScalingPoint>& points, uint64_t seed) {
  check_points(points);
  const ResidualBootstrap bootstrap(points);
  const RandomStream stream(seed, "power law");
  std::vector<double> a(kResamples), alpha(kResamples);
  for (size_t n = 0; n < kResamples; ++n) {
    const PowerLaw law = bootstrap.refit(resample(bootstrap.count(), stream, n));
    a[n] = law.a;
    alpha[n] = law.alpha;
  }
  return {bootstrap.law(), percentile_interval(std::move(a)),
          percentile_interval(std::move(alpha))};
}

ComputeAdvantage compute_advantage(const std::vector<ScalingPoint>& points,
                                   const std::vector<ScalingPoint>& baseline, double budget,
                                   uint64_t seed, ScalingPairs pairs) {
  check_points(points);
  check_points(baseline);
  require(pairs == ScalingPairs::no || points.size() == baseline.size(),
          "compute_advantage: expected pairs, got {} and {} points", points.size(),
          baseline.size());
  require(budget > 0, "compute_advantage: expected a budget above 0, got {}", budget);
  const ResidualBootstrap ours(points), theirs(baseline);
  require(theirs.law().alpha > 0,
          "compute_advantage: the baseline's loss does not fall with compute (alpha {:.4f})",
          theirs.law().alpha);
  const auto factor = [&](const PowerLaw& law, const PowerLaw& other) {
    return other.compute(law.loss(budget)) / budget;
  };
  const RandomStream our_stream(seed, "power law"), other_stream(seed, "power law of baseline");
  const RandomStream& their_stream = pairs == ScalingPairs::yes ? our_stream : other_stream;
  std::vector<double> factors(kResamples);
  for (size_t n = 0; n < kResamples; ++n) {
    factors[n] = factor(ours.refit(resample(ours.count(), our_stream, n)),
                        theirs.refit(resample(theirs.count(), their_stream, n)));
  }
  return {factor(ours.law(), theirs.law()), percentile_interval(std::move(factors))};
}

}  // namespace attnres
