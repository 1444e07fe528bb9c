#include "attnres/infer/score.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include "attnres/infer/inference_model.h"
#include "attnres/support/error.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"

namespace attnres::testing::score_test {
namespace {

TEST(ScoreSequence, IsTheLogSoftmaxOfTheLogits) {
  const at::NoGradGuard no_grad;
  const auto model = small_model(attn_res());
  const at::Tensor ids = random_ids(1, 9);
  const std::vector<double> scores = score_sequence(LocalModel(model), as_vector(ids), 9);
  ASSERT_EQ(scores.size(), 8u);
  const at::Tensor expected = model.logits(model.hidden(ids))[0].log_softmax(-1);
  for (int64_t t = 1; t < 9; ++t) {
    const double log_p = expected[t - 1][ids[0][t].item<int64_t>()].item<double>();
    EXPECT_NEAR(scores[t - 1], log_p, 1e-10);
  }
}

TEST(ScoreSequence, RefusesWhatItCannotScore) {
  const auto model = small_model(residual());
  EXPECT_THROW(score_sequence(LocalModel(model), {1}, 9), Error);
  for (const int32_t id : {-1, 50}) {
    EXPECT_THAT(message_of<Error>([&] {
                  score_sequence(LocalModel(model), {1, id}, 9);
                }),
                ::testing::HasSubstr(fmt::format("token id {} is out of range", id)));
  }
  EXPECT_THROW(score_sequence(LocalModel(model), {1, 2, 3}, 2), Error);
}

}  // namespace
}  // namespace attnres::testing::score_test
