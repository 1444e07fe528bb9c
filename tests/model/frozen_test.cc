// Models of which some parameters require no gradient.
#include <gtest/gtest.h>

#include "attnres/model/parameter_names.h"
#include "tests/model/kinds_of_models.h"
#include "tests/tolerances.h"

namespace attnres::testing::frozen_test {
namespace {

class PartlyFrozen : public ::testing::TestWithParam<KindOfModel> {};

INSTANTIATE_TEST_SUITE_P(Kinds, PartlyFrozen, ::testing::ValuesIn(every_kind_of_model()),
                         [](const auto& info) { return info.param.name; });

std::vector<at::Tensor> gradients(const Transformer& model, bool recompute) {
  model.loss(random_ids(2, 7), random_ids(2, 7, 6), {.recompute = recompute}).backward();
  std::vector<at::Tensor> result;
  for (const Parameter& p : model.parameters().all()) {
    result.push_back(p.tensor.grad());
    p.tensor.mutable_grad().reset();
  }
  return result;
}

TEST_P(PartlyFrozen, GivesTheGradientsOfTheWholeToTheRest) {
  const Transformer model = GetParam().make();
  const std::deque<Parameter>& parameters = model.parameters().all();
  const std::vector<at::Tensor> whole = gradients(model, /*recompute=*/false);
  constexpr size_t kParts = 3;
  for (size_t part = 0; part <= kParts; ++part) {
    // Each third of the parameters, and one of the middle alone.
    const auto moves = [&](size_t i) {
      return part < kParts ? i % kParts == part : i == parameters.size() / 2;
    };
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].tensor.set_requires_grad(moves(i) && is_differentiated(parameters[i].kind));
    }
    for (const bool recompute : {false, true}) {
      const std::vector<at::Tensor> some = gradients(model, recompute);
      for (size_t i = 0; i < parameters.size(); ++i) {
        const std::string name = hugging_face_name(parameters[i], model.sublayers());
        ASSERT_EQ(some[i].defined(), whole[i].defined() && moves(i)) << name;
        if (!some[i].defined()) continue;
        EXPECT_TRUE(close(some[i], whole[i], testing::tolerance(at::kDouble))) << name;
      }
    }
  }
}

}  // namespace
}  // namespace attnres::testing::frozen_test
