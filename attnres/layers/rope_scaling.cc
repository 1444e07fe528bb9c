#include "attnres/layers/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attnres/support/error.h"

namespace attnres {
namespace {

void scale_as_llama3(RotaryFrequencies& frequencies, const RopeScaling& scaling) {
  const auto context = static_cast<double>(scaling.original_context);
  for (double& f : frequencies.of_pairs) {
    const double turns = context * f / (2 * std::numbers::pi);
    const double kept =
        (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
    const double part = std::clamp(kept, 0.0, 1.0);
    f = (1 - part) * f / scaling.factor + part * f;
  }
}

// The pair, between whole ones, that turns so often in the original context.
double pair_of_turns(double turns, int64_t head_width, double theta, const RopeScaling& scaling) {
  const auto context = static_cast<double>(scaling.original_context);
  return static_cast<double>(head_width) * std::log(context / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(theta));
}

void scale_as_yarn(RotaryFrequencies& frequencies, int64_t head_width, double theta,
                   const RopeScaling& scaling) {
  double first = pair_of_turns(scaling.beta_fast, head_width, theta, scaling);
  double last = pair_of_turns(scaling.beta_slow, head_width, theta, scaling);
  if (scaling.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(head_width - 1));
  if (first == last) last += 0.001;  // as others do, who divide by their difference
  for (size_t c = 0; c < frequencies.of_pairs.size(); ++c) {
    double& f = frequencies.of_pairs[c];
    const double part = std::clamp((static_cast<double>(c) - first) / (last - first), 0.0, 1.0);
    f = (1 - part) * f + part * f / scaling.factor;
  }
  frequencies.magnitude =
      scaling.attention_factor > 0 ? scaling.attention_factor : 0.1 * std::log(scaling.factor) + 1;
}

}  // namespace

void RopeScaling::check(const std::string& path) const {
  require_usage(!is_none() || factor == 1, "{}.factor: {} without a type has no effect", path,
                factor);
  require_usage(original_context > 0 || is_none() || type == "linear",
                "{}.original_context: expected the context that was trained first, got {}", path,
                original_context);
  require_usage(low_freq_factor < high_freq_factor,
                "{}: expected low_freq_factor < high_freq_factor, got {} and {}", path,
                low_freq_factor, high_freq_factor);
  require_usage(beta_slow <= beta_fast, "{}: expected beta_slow <= beta_fast, got {} and {}", path,
                beta_slow, beta_fast);
}

RotaryFrequencies scaled_frequencies(int64_t head_width, double theta, const RopeScaling& scaling) {
  RotaryFrequencies frequencies = rotary_frequencies(head_width, theta);
  if (scaling.type == "linear") {
    for (double& f : frequencies.of_pairs) f /= scaling.factor;
  } else if (scaling.type == "llama3") {
    scale_as_llama3(frequencies, scaling);
  } else if (scaling.type == "yarn") {
    scale_as_yarn(frequencies, head_width, theta, scaling);
  }
  return frequencies;
}

}  // namespace attnres
