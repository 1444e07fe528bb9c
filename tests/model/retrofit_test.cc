#include "attnres/model/retrofit.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include "attnres/support/error.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"
#include "tests/tolerances.h"

namespace attnres::testing::retrofit_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kTokens = 80;

Json with_divided_eps(Json mixing) {
  mixing["norm_eps"] = "per_source_count";
  return mixing;
}

std::unique_ptr<Transformer> retrofitted(const Transformer& model, const Json& mixing) {
  return retrofit(model, DepthMixing(mixing, model.config().mixer_shape()));
}

// Large enough an eps that a model which did not divide it would differ.
Transformer grouped_query_model() {
  ModelConfig config = small_config(residual(), 4);
  config.norm_eps = 0.1;
  return perturbed(Transformer(config, kSmallVocabulary, /*seed=*/1, at::kDouble));
}

TEST(Retrofit, ComputesTheSameToRounding) {
  for (const Json& mixing :
       {attn_res(), block_attn_res(1), block_attn_res(3), block_attn_res(4), block_attn_res(8)}) {
    const Transformer model = grouped_query_model();
    EXPECT_LT(largest_difference(model, *retrofitted(model, with_divided_eps(mixing)), kTokens),
              1e-10)
        << mixing;
    const Transformer kimi = kimi_model(/*k3=*/false, residual());
    EXPECT_LT(largest_difference(kimi, *retrofitted(kimi, with_divided_eps(mixing)), kTokens),
              1e-10)
        << mixing;
    // Controls: one eps for all sites; a pseudo-query that is not zero.
    EXPECT_GT(largest_difference(model, *retrofitted(model, mixing), kTokens), 1e-3) << mixing;
    const auto moved = retrofitted(model, with_divided_eps(mixing));
    perturb(*moved, ParameterKind::pseudo_query, 0.5);
    EXPECT_GT(largest_difference(model, *moved, kTokens), 1e-3) << mixing;
  }
}

// The stream stays, and a mixture times zero changes nothing.
TEST(Retrofit, IntoDeltaAttentionResidualsIsExact) {
  for (const int64_t block_size : {1, 3, 4}) {
    Json delta = {{"type", "delta_attn_res"}, {"block_size", block_size}, {"gate", "zero"}};
    for (const Transformer& model : {grouped_query_model(), kimi_model(/*k3=*/false, residual())}) {
      EXPECT_LT(largest_difference(model, *retrofitted(model, delta), kTokens), 1e-13) << delta;
      // Controls: no gate; a gate that is not zero.
      Json ungated = delta;
      ungated["gate"] = "none";
      EXPECT_GT(largest_difference(model, *retrofitted(model, ungated), kTokens), 1e-5);
      const auto moved = retrofitted(model, delta);
      perturb(*moved, ParameterKind::mixing, 0.5);
      EXPECT_GT(largest_difference(model, *moved, kTokens), 1e-5) << delta;
    }
    // At first the gates alone have gradients, then all that is new.
    const auto model = retrofitted(grouped_query_model(), delta);
    for (const double moved : {0.0, 0.1}) {
      perturb(*model, ParameterKind::mixing, moved);
      model->loss(random_ids(2, 12), random_ids(2, 12, 5)).backward();
      for (const Parameter& p : model->parameters().all()) {
        const bool is_new =
            p.role == "mixture_gate" || (moved > 0 && p.kind == ParameterKind::pseudo_query);
        if (is_new) {
          EXPECT_GT(p.tensor.grad().abs().max().item<double>(), 1e-9) << p.role << p.site;
        }
      }
    }
  }
}

TEST(Retrofit, ADifferenceIsANumber) {
  const Transformer model = small_model({{"type", "residual"}});
  const auto other = retrofitted(model, with_divided_eps(attn_res()));
  const at::NoGradGuard no_grad;
  other->parameters().all()[0].tensor.fill_(NAN);
  EXPECT_THAT(message_of<Error>([&] { largest_difference(model, *other, kTokens); }),
              ::testing::HasSubstr("not finite"));
}

TEST(Retrofit, LeavesSomethingToTrain) {
  const Transformer model = grouped_query_model();
  const auto other = retrofitted(model, with_divided_eps(block_attn_res(4)));
  other->loss(random_ids(2, 12), random_ids(2, 12, 5)).backward();
  for (const Parameter& p : other->parameters().all()) {
    if (p.kind != ParameterKind::pseudo_query) continue;
    EXPECT_GT(p.tensor.grad().abs().max().item<double>(), 1e-9) << p.site;
  }
}

TEST(Retrofit, StartsFromPlainResidualConnectionsOnly) {
  const Transformer model = small_model({{"type", "rezero"}});
  EXPECT_THAT(message_of<Error>([&] { retrofitted(model, attn_res()); }),
              AllOf(HasSubstr("rezero"), HasSubstr("plain residual")));
}

}  // namespace
}  // namespace attnres::testing::retrofit_test
