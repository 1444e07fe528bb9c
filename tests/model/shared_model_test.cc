// A model is immutable while it runs: requests on threads of their own share it.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <barrier>
#include <future>

#include "tests/model/kinds_of_models.h"

namespace attnres::testing::shared_model_test {
namespace {

// What one request asks of a model: log-probabilities, a loss with the gradient of every parameter,
// and hidden states, in one pass and decoded token by token.
std::vector<at::Tensor> answers(const Transformer& model, int64_t batch, int64_t tokens) {
  at::set_num_threads(1);  // of this thread
  const at::Tensor ids = random_ids(batch, tokens), targets = random_ids(batch, tokens, 6);
  std::vector<at::Tensor> all = {model.log_probabilities(ids, targets), model.loss(ids, targets)};
  std::vector<at::Tensor> parameters;
  for (const Parameter& p : model.parameters().all()) {
    if (p.tensor.requires_grad()) parameters.push_back(p.tensor);
  }
  for (const at::Tensor& gradient :
       torch::autograd::grad({all.back()}, parameters, {}, /*retain_graph=*/false,
                             /*create_graph=*/false, /*allow_unused=*/true)) {
    if (gradient.defined()) all.push_back(gradient);
  }
  const at::NoGradGuard no_grad;
  all.push_back(model.hidden(ids));
  SideBySide decoded = side_by_side(model, batch, tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    all.push_back(hidden_of(model, ids.narrow(1, t, 1), decoded));
  }
  return all;
}

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); });
}

class SharedByTwoThreads : public ::testing::TestWithParam<KindOfModel> {};

TEST_P(SharedByTwoThreads, AnswersEachAsItDoesAlone) {
  constexpr int kRounds = 4;
  const int threads_before = at::get_num_threads();
  const Transformer model = GetParam().make();
  const auto shape = [](int thread) { return thread == 0 ? std::pair{2, 7} : std::pair{3, 5}; };
  std::vector<std::vector<at::Tensor>> alone;
  for (const int thread : {0, 1}) {
    alone.push_back(answers(model, shape(thread).first, shape(thread).second));
  }
  EXPECT_FALSE(same_bits(alone[0], alone[1]));

  std::barrier start(2);
  const auto ask = [&](int thread) {
    return std::async(std::launch::async, [&, thread] {
      start.arrive_and_wait();
      int equal = 0;
      for (int round = 0; round < kRounds; ++round) {
        const auto together = answers(model, shape(thread).first, shape(thread).second);
        equal += static_cast<int>(same_bits(together, alone[thread]));
      }
      return equal;
    });
  };
  std::future<int> first = ask(0), second = ask(1);
  EXPECT_EQ(first.get(), kRounds) << "rounds equal to alone";
  EXPECT_EQ(second.get(), kRounds) << "rounds equal to alone";
  at::set_num_threads(threads_before);
}

INSTANTIATE_TEST_SUITE_P(Models, SharedByTwoThreads, ::testing::ValuesIn(every_kind_of_model()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace attnres::testing::shared_model_test
