// Statistics of few measurements: paired differences, several comparisons at once, the bootstrap.
#pragma once

#include <cstddef>
#include <vector>

#include "attnres/support/random.h"

namespace attnres {

inline constexpr double kSignificance = 0.05;  // two-sided; intervals are at 95 %
inline constexpr double kPower = 0.8;
inline constexpr size_t kResamples = 2000;
inline constexpr size_t kMostPairs = size_t{1} << 20;  // that pairs_needed tells

struct Interval {
  double low = 0, high = 0;
};

// sum x_i / n. Throws Error for no value.
double sample_mean(const std::vector<double>& values);

// sqrt(sum (x_i - mean)^2 / (n - 1)). Throws Error for fewer than two values.
double sample_deviation(const std::vector<double>& values);

// Student's t test of paired differences with mean m and sample deviation s.
struct PairedTest {
  size_t pairs = 0;
  double mean = 0, deviation = 0;
  Interval interval = {};  // m ± t_{0.975, n-1} s / sqrt(n)
  double p_value = 1;  // 2 P(T_{n-1} > |m| sqrt(n) / s), that of a mean of 0; where s is 0, 0 or 1
};

// Throws Error for fewer than two differences.
PairedTest paired_t_test(const std::vector<double>& differences);

// The p values of m tests, adjusted so that rejecting those below 0.05 rejects a true hypothesis
// with a probability of at most 0.05 (Holm, Scand. J. Statist. 6, 1979): in ascending order,
// p'_(i) = max over j <= i of min(1, (m - j + 1) p_(j)). In the order given.
std::vector<double> holm_adjusted(const std::vector<double>& p_values);

// How many pairs a t test at 5 %, two-sided, needs to find a mean difference with a probability of
// 80 %, where the differences have this deviation: the least n >= 2 with
// P(T > t_{0.975, n-1}) >= 0.8 for a noncentral T of n - 1 degrees of freedom and noncentrality
// sqrt(n) difference / deviation; kMostPairs where it is not fewer. Throws Error unless
// difference > 0 and deviation >= 0.
size_t pairs_needed(double difference, double deviation);

// `count` of the indices 0 .. count-1, drawn with replacement: the n-th resample of a stream.
std::vector<size_t> resample(size_t count, const RandomStream& stream, size_t n);

// Between the 2.5 and the 97.5 percentile, interpolated; of a statistic of kResamples resamples it
// is the interval of the percentile bootstrap (Efron and Tibshirani, An Introduction to the
// Bootstrap, 1993, chapter 13). Throws Error for no value, and for one that is NaN.
Interval percentile_interval(std::vector<double> values);

// The 95 % interval of Student's t for the mean of values. Throws Error for fewer than two.
Interval mean_interval(const std::vector<double>& values);

}  // namespace attnres
