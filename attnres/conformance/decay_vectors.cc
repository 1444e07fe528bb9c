#include "attnres/conformance/decay_vectors.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/autograd.h>

#include <nlohmann/json.hpp>

#include "attnres/support/random.h"

namespace attnres {
namespace {

constexpr int64_t kDecayBatch = 2, kDecayTokens = 4, kHeads = 6, kHeadWidth = 8;
constexpr double kLowerBound = -5;

// Numbers that depend on nothing but their name.
at::Tensor decay_numbers(const std::string& name, at::IntArrayRef sizes, double scale) {
  const RandomStream random(/*seed=*/0, fmt::format("test_vectors.{}.{}", kDecayEntry, name));
  const at::Tensor all = at::empty(sizes, at::kDouble);
  double* data = all.mutable_data_ptr<double>();
  for (int64_t i = 0; i < all.numel(); ++i) data[i] = scale * random.normal(i);
  return all;
}

}  // namespace

TestVectors make_decay_vectors(at::ScalarType dtype, Mistake mistake) {
  const at::AutoGradMode recording(true);
  TestVectors vectors;
  const auto give = [&](const std::string& name, const at::Tensor& all) {
    vectors.given.emplace_back(name, all.to(dtype).set_requires_grad(true));
    return vectors.given.back().second;
  };
  const std::vector<int64_t> sizes = {kDecayBatch, kDecayTokens, kHeads, kHeadWidth};
  const at::Tensor gate = give("gate", decay_numbers("gate", sizes, 1));
  at::Tensor stored = decay_numbers("A_log", {kHeadWidth}, 0.7);
  stored.narrow(0, kHeads, kHeadWidth - kHeads).zero_();
  const at::Tensor A_log = give("parameter.A_log", stored);
  const at::Tensor dt_bias =
      give("parameter.dt_bias", decay_numbers("dt_bias", {kHeads, kHeadWidth}, 1));
  const at::Tensor rate =
      (mistake == Mistake::decay_read_whole ? A_log.unsqueeze(0)
                                            : A_log.narrow(0, 0, kHeads).unsqueeze(1))
          .exp();
  const at::Tensor log_decay = kLowerBound * at::sigmoid(rate * (gate + dt_bias));
  const at::Tensor cotangent = decay_numbers("cotangent.log_decay", sizes, 1).to(dtype);
  vectors.results.emplace_back("log_decay", log_decay);
  const std::vector<at::Tensor> gradients =
      torch::autograd::grad({log_decay}, {gate, A_log, dt_bias}, {cotangent});
  for (size_t i = 0; i < gradients.size(); ++i) {
    vectors.results.emplace_back("gradient." + vectors.given[i].first, gradients[i]);
  }
  vectors.given.emplace_back("cotangent.log_decay", cotangent);
  return vectors;
}

Json describe_decay_vectors() {
  return {
      {"name", kDecayEntry},
      {"formula", "log_decay[h, c] = b sg(exp(A_log[h]) (gate[h, c] + dt_bias[h, c])), b = -5"},
      {"details",
       "One Kimi Delta Attention of Kimi K3. Of A_log, as it stands in a file, the first "
       "`heads` numbers are those of the heads; the others are zeros that nothing reads. "
       "A head has `width` channels, and A_log as many numbers."},
      {"roles",
       {{"A_log", "[width]: of head h its number h; then zeros"}, {"dt_bias", "[heads, width]"}}},
      {"notation", "sg is the sigmoid; h counts heads, c the channels of a head, both from 0"},
      {"source", "Kimi Linear, arXiv 2510.26692, with the lower bound of Kimi K3"},
      {"batch", kDecayBatch},
      {"tokens", kDecayTokens},
      {"heads", kHeads},
      {"width", kHeadWidth},
      {"tensors",
       {{"gate", "given, [B, T, heads, width]: what F_b F_a x is"},
        {"parameter.ROLE", "given: roles says what it is"},
        {"cotangent.log_decay", "given: c of the log decays"},
        {"log_decay", "[B, T, heads, width]"},
        {"gradient.NAME", "of sum <c, log_decay>, with respect to the given NAME"}}}};
}

const KnownMistake& decay_read_whole() {
  static constexpr KnownMistake mistake = {
      Mistake::decay_read_whole, "decay_read_whole",
      "A_log is read whole, as a number for each channel: its first numbers are the heads', one "
      "each, and the rest is padding"};
  return mistake;
}

}  // namespace attnres
