#include "attnres/report/statistics.h"

#include <algorithm>
// Doubles are enough, and what boost prepares of long doubles before main ends programs under
// valgrind, whose long doubles are doubles.
#define BOOST_MATH_NO_LONG_DOUBLE_MATH_FUNCTIONS
#include <boost/math/distributions/non_central_t.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <numeric>

#include "attnres/support/error.h"

namespace attnres {
namespace {

double critical_t(size_t pairs) {
  return quantile(complement(boost::math::students_t(double(pairs - 1)), kSignificance / 2));
}

// The probability to find a mean difference of `effect` deviations, with its sign.
double power(size_t pairs, double effect) {
  const double noncentrality = effect * std::sqrt(double(pairs));
  if (noncentrality > 50) return 1;  // above 0.9999 for any number of pairs
  const boost::math::non_central_t t(double(pairs - 1), noncentrality);
  return cdf(complement(t, critical_t(pairs)));
}

}  // namespace

double sample_mean(const std::vector<double>& values) {
  require(!values.empty(), "sample_mean: there is no value");
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

double sample_deviation(const std::vector<double>& values) {
  require(values.size() >= 2, "sample_deviation: two values are needed, there is {}",
          values.size());
  const double mean = sample_mean(values);
  double squares = 0;
  for (double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / double(values.size() - 1));
}

PairedTest paired_t_test(const std::vector<double>& differences) {
  const size_t n = differences.size();
  require(n >= 2, "paired_t_test: two pairs are needed, there is {}: one cannot tell", n);
  PairedTest test{
      .pairs = n, .mean = sample_mean(differences), .deviation = sample_deviation(differences)};
  const double error = test.deviation / std::sqrt(double(n));
  const double margin = critical_t(n) * error;
  test.interval = {test.mean - margin, test.mean + margin};
  if (error > 0) {
    const double t = std::abs(test.mean) / error;
    test.p_value = 2 * cdf(complement(boost::math::students_t(double(n - 1)), t));
  } else {
    test.p_value = test.mean == 0 ? 1 : 0;
  }
  return test;
}

std::vector<double> holm_adjusted(const std::vector<double>& p_values) {
  std::vector<size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return p_values[a] < p_values[b]; });
  std::vector<double> adjusted(p_values.size());
  double least = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    least = std::max(least, std::min(1.0, double(order.size() - i) * p_values[order[i]]));
    adjusted[order[i]] = least;
  }
  return adjusted;
}

size_t pairs_needed(double difference, double deviation) {
  require(difference > 0 && deviation >= 0,
          "pairs_needed: expected a difference above 0 and a deviation of 0 or more, got {} and {}",
          difference, deviation);
  if (deviation == 0) return 2;
  const double effect = difference / deviation;
  size_t enough = 2;
  while (power(enough, effect) < kPower) {
    if (enough >= kMostPairs) return kMostPairs;
    enough *= 2;
  }
  size_t too_few = enough / 2;
  while (enough - too_few > 1) {
    const size_t middle = too_few + (enough - too_few) / 2;
    (power(middle, effect) < kPower ? too_few : enough) = middle;
  }
  return enough;
}

std::vector<size_t> resample(size_t count, const RandomStream& stream, size_t n) {
  std::vector<size_t> drawn(count);
  for (size_t i = 0; i < count; ++i) drawn[i] = stream.below(count, n * count + i);
  return drawn;
}

Interval percentile_interval(std::vector<double> values) {
  require(!values.empty(), "percentile_interval: there is no value");
  require(
      std::none_of(values.begin(), values.end(), [](double value) { return std::isnan(value); }),
      "percentile_interval: a value is no number");
  std::sort(values.begin(), values.end());
  const auto percentile = [&](double share) {
    const double place = share * double(values.size() - 1);
    const size_t below = size_t(place);
    const size_t above = std::min(below + 1, values.size() - 1);
    return std::lerp(values[below], values[above], place - double(below));
  };
  return {percentile(kSignificance / 2), percentile(1 - kSignificance / 2)};
}

Interval mean_interval(const std::vector<double>& values) {
  return paired_t_test(values).interval;
}

}  // namespace attnres
