#include "attnres/formats/gguf_rope.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

constexpr const char* kOriginalContext = "rope.scaling.original_context_length";
constexpr const char* kLowFactor = "rope.scaling.low_freq_factor";    // which llama.cpp ignores,
constexpr const char* kHighFactor = "rope.scaling.high_freq_factor";  // as this
constexpr double kTurn = 2 * std::numbers::pi;

// Differences of numbers that were stored in float32.
bool is_close(double a, double b) {
  return std::abs(a - b) <= 1e-6 * std::abs(b);
}

std::vector<double> factors_of(int64_t head_width, double theta, const RopeScaling& scaling) {
  std::vector<double> factors = rotary_frequencies(head_width, theta).of_pairs;
  const std::vector<double> scaled = scaled_frequencies(head_width, theta, scaling).of_pairs;
  for (size_t c = 0; c < factors.size(); ++c) factors[c] /= scaled[c];
  return factors;
}

// The context that llama3 scales from, which the file does not say: a frequency that is scaled in
// part tells it. Where there is none, every context does that keeps those that are kept and scales
// those that are scaled.
int64_t original_context(const std::vector<double>& factors, const std::vector<double>& frequencies,
                         const RopeScaling& scaling) {
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  double least = 1, most = INFINITY;
  for (size_t c = 0; c < factors.size(); ++c) {
    const double kept = (1 / factors[c] - 1 / scaling.factor) / (1 - 1 / scaling.factor);
    const double context = kTurn * (low + kept * (high - low)) / frequencies[c];
    if (kept > 0.01 && kept < 0.99) return std::llround(context);
    if (kept >= 0.99) least = std::max(least, context);
    if (kept <= 0.01) most = std::min(most, context);
  }
  return std::llround(std::isinf(most) ? 2 * least : std::sqrt(least * most));
}

RopeScaling read_llama3(const GgufFile& file, const ConfigKeys& keys, double theta,
                        int64_t head_width) {
  const at::Tensor stored = file.numbers(kGgufRopeFactors).to(at::kDouble).contiguous();
  require(stored.dim() == 1 && stored.numel() == head_width / 2,
          "{}: {} has the shape [{}], expected [{}]", file.path(), kGgufRopeFactors,
          fmt::join(stored.sizes(), ", "), head_width / 2);
  const double* first = stored.const_data_ptr<double>();
  const std::vector<double> factors(first, first + stored.numel());
  RopeScaling scaling = {.type = "llama3",
                         .factor = *std::max_element(factors.begin(), factors.end()),
                         .low_freq_factor = keys.number(kLowFactor, 1),
                         .high_freq_factor = keys.number(kHighFactor, 4)};
  const std::string unknown = fmt::format(
      "{}: {} holds factors other than those of llama3 with low_freq_factor {} and "
      "high_freq_factor {}, which alone attnres computes",
      file.path(), kGgufRopeFactors, scaling.low_freq_factor, scaling.high_freq_factor);
  require(std::isfinite(scaling.factor) && scaling.factor > 1 &&
              *std::min_element(factors.begin(), factors.end()) > 0,
          "{}", unknown);
  scaling.original_context =
      keys.missing(kOriginalContext)
          ? original_context(factors, rotary_frequencies(head_width, theta).of_pairs, scaling)
          : keys.whole(kOriginalContext);
  scaling.check(unknown);
  const std::vector<double> ours = factors_of(head_width, theta, scaling);
  for (size_t c = 0; c < ours.size(); ++c) {
    require(std::abs(ours[c] / factors[c] - 1) < 1e-4, "{}", unknown);
  }
  return scaling;
}

RopeScaling read_linear_or_yarn(const ConfigKeys& keys) {
  double factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0));
  if (factor == 0) factor = 1;  // as llama.cpp takes it
  // llama.cpp's default, too.
  const std::string type =
      keys.missing("rope.scaling.type") ? "linear" : keys.text("rope.scaling.type");
  if (type == "none" || (type == "linear" && factor == 1)) return {};
  require(type == "linear" || type == "yarn",
          "{}: rope.scaling.type {}: attnres computes none, linear and yarn", keys.what(),
          one_line(type));
  RopeScaling scaling = {.type = type, .factor = factor};
  if (type == "linear") return scaling;
  scaling.original_context = keys.whole(kOriginalContext, keys.whole("context_length"));
  return scaling;
}

// What llama.cpp does not read of these architectures has to be what it computes.
void check_unread(const ConfigKeys& keys, const RopeScaling& scaling) {
  const RopeScaling plain;
  for (const auto& [key, computed] :
       {std::pair("rope.scaling.yarn_beta_fast", plain.beta_fast),
        {"rope.scaling.yarn_beta_slow", plain.beta_slow},
        {"rope.scaling.yarn_ext_factor", 1.0},
        {"rope.scaling.yarn_attn_factor", usual_yarn_magnitude(scaling.factor)}}) {
    const double said = keys.number(key, computed);
    require(is_close(said, computed), "{}: {} is {}, but attnres and llama.cpp compute only {}",
            keys.what(), key, said, computed);
  }
}

}  // namespace

double usual_yarn_magnitude(double factor) {
  return 0.1 * std::log(factor) + 1;
}

double yarn_magnitude(const RopeScaling& scaling) {
  return scaling.attention_factor > 0 ? scaling.attention_factor
                                      : usual_yarn_magnitude(scaling.factor);
}

RopeScaling with_magnitude(RopeScaling scaling, double magnitude) {
  const bool is_usual = is_close(magnitude, usual_yarn_magnitude(scaling.factor));
  scaling.attention_factor = is_usual ? 0 : magnitude;
  return scaling;
}

void check_gguf_rope(const RopeScaling& scaling, bool computes_llama3, const std::string& name) {
  require(scaling.type != "llama3" || computes_llama3,
          "model.rope_scaling.type llama3: llama.cpp scales positions so in Llama only, and this "
          "model is {}; write safetensors",
          name);
  if (scaling.type != "yarn") return;
  const RopeScaling plain;
  for (const auto& [key, given, computed] :
       {std::tuple("beta_fast", scaling.beta_fast, plain.beta_fast),
        {"beta_slow", scaling.beta_slow, plain.beta_slow}}) {
    require(given == computed,
            "model.rope_scaling.{} {}: llama.cpp computes only {}; write safetensors", key, given,
            computed);
  }
  require(scaling.truncate,
          "model.rope_scaling.truncate false: llama.cpp computes only true; write safetensors");
}

void write_gguf_rope(const ModelConfig& config, double unsaid_magnitude, GgufKeys& keys) {
  const RopeScaling& scaling = config.rope_scaling;
  keys.add("rope.freq_base", config.rope_theta);
  if (scaling.is_none()) return;
  if (scaling.type == "llama3") {
    keys.add(kOriginalContext, scaling.original_context);
    keys.add(kLowFactor, scaling.low_freq_factor);
    keys.add(kHighFactor, scaling.high_freq_factor);
    return;
  }
  keys.add_value("rope.scaling.type", scaling.type);
  keys.add("rope.scaling.factor", scaling.factor);
  if (scaling.type != "yarn") return;
  keys.add(kOriginalContext, scaling.original_context);
  const double attn_factor = yarn_magnitude(scaling) / unsaid_magnitude;
  if (!is_close(attn_factor, 1)) keys.add("rope.scaling.attn_factor", attn_factor);
}

at::Tensor gguf_rope_factors(const ModelConfig& config) {
  const std::vector<double> factors =
      factors_of(config.head_width, config.rope_theta, config.rope_scaling);
  return at::tensor(factors, at::kDouble).to(at::kFloat);
}

GgufRope read_gguf_rope(const GgufFile& file, const ConfigKeys& keys, int64_t head_width) {
  GgufRope rope = {.theta = keys.number("rope.freq_base", ModelConfig().rope_theta),
                   .scaling = read_linear_or_yarn(keys)};
  if (file.contains(kGgufRopeFactors)) {
    require(rope.scaling.is_none(), "{}: {} beside rope.scaling.type {}: attnres computes one",
            keys.what(), kGgufRopeFactors, rope.scaling.type);
    rope.scaling = read_llama3(file, keys, rope.theta, head_width);
  }
  if (rope.scaling.type == "yarn") {
    check_unread(keys, rope.scaling);
    rope.attn_factor = keys.number("rope.scaling.attn_factor", 1);
    // A recipe's 0 stands for the usual one.
    require(rope.attn_factor > 0, "{}: rope.scaling.attn_factor: expected more than 0, got {}",
            keys.what(), rope.attn_factor);
  } else {
    keys.only("rope.scaling.attn_factor", 1);
  }
  return rope;
}

}  // namespace attnres
