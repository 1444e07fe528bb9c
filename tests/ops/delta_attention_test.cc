// Delta attention by its kernel against what it is composed of elsewhere.
#include "attnres/ops/delta_attention/delta_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"
#include "tests/ops/every_target.h"
#include "tests/tolerances.h"

namespace attnres::ops_delta_attention_test {
namespace {

using at::Tensor;
using testing::close;

constexpr int64_t kSequences = 2, kTokens = 5, kHeads = 3, kWidth = 4, kConvWidth = 4,
                  kChannels = kHeads * kWidth;

DeltaAttentionInputs inputs_of(at::ScalarType dtype, double decay_bound) {
  const auto rows = [&](int64_t width) {
    return at::randn({kSequences * kTokens, width}, at::kDouble).to(dtype);
  };
  const auto kernel = [] { return 0.5 * at::randn({kChannels, kConvWidth}, at::kFloat); };
  return {.inputs = {rows(kChannels), rows(kChannels), rows(kChannels)},
          .decay = rows(kChannels),
          .beta = rows(kHeads),
          .gate = rows(kChannels),
          .conv_PW = {kernel(), kernel(), kernel()},
          .A_log_H = at::randn({kHeads}) - 1,
          .dt_bias_P = at::randn({kChannels}),
          .gain_K = at::rand({kWidth}) + 0.5,
          .decay_bound = decay_bound,
          .norm_eps = 0.1};
}

DeltaAttentionKept kept_of(at::ScalarType dtype) {
  DeltaAttentionKept kept;
  for (Tensor& inputs : kept.conv_inputs) {
    inputs = at::randn({kSequences, kConvWidth - 1, kChannels}).to(dtype);
  }
  kept.states = at::randn({kSequences, kHeads, kWidth, kWidth}).to(compute_dtype(dtype));
  return kept;
}

// y, and then what is kept.
using Function = DeltaAttentionFunction;
std::vector<Tensor> run(Function* function, const DeltaAttentionInputs& in,
                        const DeltaAttentionKept& before) {
  std::vector<Tensor> all = {Tensor(), before.conv_inputs[0].clone(), before.conv_inputs[1].clone(),
                             before.conv_inputs[2].clone(), before.states.clone()};
  DeltaAttentionStates states;
  for (int64_t b = 0; b < kSequences; ++b) {
    for (size_t i = 0; i < 3; ++i) states.conv_inputs[i].push_back(all[1 + i][b].data_ptr());
    states.states.push_back(all[4][b].data_ptr());
  }
  all[0] = function(in, states);
  return all;
}

class DeltaAttentionOf : public ::testing::TestWithParam<at::ScalarType> {};

INSTANTIATE_TEST_SUITE_P(Dtypes, DeltaAttentionOf,
                         ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

TEST_P(DeltaAttentionOf, IsTheSameByKernelAndComposed) {
  const double bound = GetParam() == at::kBFloat16 ? 3e-2 : 2e-5;
  for (const double decay_bound : {0.0, -5.0}) {
    at::manual_seed(1);
    const DeltaAttentionInputs in = inputs_of(GetParam(), decay_bound);
    const DeltaAttentionKept before = kept_of(GetParam());
    const std::vector<Tensor> composed = run(&delta_attention_composed, in, before);
    testing::on_every_target([&] {
      const std::vector<Tensor> by_kernel = run(&delta_attention, in, before);
      for (size_t i = 0; i < by_kernel.size(); ++i) {
        EXPECT_EQ(by_kernel[i].scalar_type(), composed[i].scalar_type()) << i;
        EXPECT_TRUE(close(by_kernel[i], composed[i], bound)) << i;
      }
    });
    DeltaAttentionInputs other = in;
    other.decay = in.decay.flip(0);
    EXPECT_FALSE(close(run(&delta_attention_composed, other, before)[0], composed[0], bound));
    EXPECT_FALSE(close(composed[4], before.states, bound));
  }
}

TEST(DeltaAttention, BeginsWithZeros) {
  const DeltaAttentionInputs in = inputs_of(at::kFloat, 0);
  DeltaAttentionKept zeros = kept_of(at::kFloat);
  for (Tensor& inputs : zeros.conv_inputs) inputs.zero_();
  zeros.states.zero_();
  const DeltaAttentionOutput of_zeros = delta_attention_composed(in, kSequences, zeros),
                             of_none = delta_attention_composed(in, kSequences, {});
  EXPECT_TRUE(at::equal(of_zeros.y, of_none.y));
  EXPECT_TRUE(at::equal(of_zeros.kept.states, of_none.kept.states));
  EXPECT_TRUE(at::equal(of_zeros.kept.conv_inputs[2], of_none.kept.conv_inputs[2]));
}

TEST(DeltaAttention, IsNotWhatIsRecorded) {
  DeltaAttentionInputs in = inputs_of(at::kFloat, 0);
  EXPECT_TRUE(has_delta_attention(in));
  in.gain_K.requires_grad_(true);
  EXPECT_FALSE(has_delta_attention(in));
  in.gain_K = in.gain_K.detach();
  in.beta = in.beta.to(at::kMeta);
  EXPECT_THROW(run(&delta_attention, in, kept_of(at::kFloat)), Error);
}

}  // namespace
}  // namespace attnres::ops_delta_attention_test
