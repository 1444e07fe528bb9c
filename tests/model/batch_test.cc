// Documents side by side in a batch's rows, which do not see each other.
#include "attnres/model/batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "attnres/model/transformer.h"
#include "tests/model/kinds_of_models.h"
#include "tests/tolerances.h"

namespace attnres::testing::batch_test {
namespace {

class DocumentsOfABatch : public ::testing::TestWithParam<KindOfModel> {
 protected:
  struct Result {
    double loss = 0;
    std::map<std::string, at::Tensor> gradients;
  };

  // The sum over the batches.
  Result sum_of(const std::vector<Batch>& batches, bool recompute = false) {
    Result result;
    for (const Batch& batch : batches) {
      const LossSum loss = model_.loss_sum(batch, {.recompute = recompute});
      loss.sum.backward();
      result.loss += loss.sum.item<double>();
    }
    for (const Parameter& p : model_.parameters().all()) {
      if (!p.tensor.grad().defined()) continue;
      result.gradients[fmt::format("{}.{}", p.site, p.role)] = p.tensor.grad().clone();
      p.tensor.mutable_grad().zero_();
    }
    return result;
  }

  // Two rows, of three documents and of one and a piece: the last is row-filling's rest.
  const std::vector<int64_t> lengths_ = {2, 5, 1, 6, 2};
  const at::Tensor ids_ = random_ids(2, 8), targets_ = random_ids(2, 8, /*seed=*/4);
  const Transformer model_ = GetParam().make();
};

INSTANTIATE_TEST_SUITE_P(Models, DocumentsOfABatch, ::testing::ValuesIn(every_kind_of_model()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DocumentsOfABatch, GiveWhatEachGivesAlone) {
  std::vector<Batch> alone;
  int64_t first = 0;
  for (const int64_t length : lengths_) {
    const auto part = [&](const at::Tensor& x) {
      return x.flatten().narrow(0, first, length).unsqueeze(0);
    };
    alone.push_back({part(ids_), part(targets_)});
    first += length;
  }
  const Result expected = sum_of(alone);
  // Gradients of what is saturated are small differences of large numbers.
  double largest = 0;
  for (const auto& [name, gradient] : expected.gradients) {
    largest = std::max(largest, gradient.abs().max().item<double>());
  }
  for (const bool recompute : {false, true}) {
    const Result together = sum_of({{ids_, targets_, lengths_}}, recompute);
    EXPECT_NEAR(together.loss, expected.loss, 1e-9 * expected.loss);
    ASSERT_EQ(together.gradients.size(), expected.gradients.size());
    for (const auto& [name, gradient] : expected.gradients) {
      EXPECT_TRUE(close(together.gradients.at(name), gradient, 1e-10, largest)) << name;
    }
  }
  // Negative control: they do see each other in whole rows.
  EXPECT_GT(std::abs(sum_of({{ids_, targets_}}).loss - expected.loss), 1e-5 * expected.loss);
}

}  // namespace
}  // namespace attnres::testing::batch_test
