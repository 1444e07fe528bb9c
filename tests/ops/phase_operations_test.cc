// Both phases as the dispatcher has them, without a norm, against depth attention composed of
// tensor operations in float64, for every storage type and every instruction set of this machine.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "attnres/ops/depth_attention/depth_attention.h"
#include "tests/ops/every_target.h"
#include "tests/tolerances.h"

namespace attnres::phase_operations_test {
namespace {

using at::Tensor;
using testing::close;
using Tensors = std::vector<Tensor>;

constexpr double kEps = 1e-6;

std::tuple<Tensors, Tensors, Tensors> phase_one(at::TensorList sources, const Tensor& queries) {
  using Function = std::tuple<Tensors, Tensors, Tensors>(at::TensorList, const Tensor&, double);
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("attnres::depth_attention_phase_one", "")
                                    .typed<Function>();
  return operation.call(sources, queries, kEps);
}

Tensor phase_two(const Tensor& o, const Tensor& max, const Tensor& sum, at::TensorList recent,
                 const Tensor& query) {
  using Function =
      Tensor(const Tensor&, const Tensor&, const Tensor&, at::TensorList, const Tensor&, double);
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("attnres::depth_attention_phase_two", "")
                                    .typed<Function>();
  return operation.call(o, max, sum, recent, query, kEps);
}

// Phase 1 reads `earlier` sources; each site one more than the site before it.
struct Shape {
  int64_t earlier, sites, tokens = 3, width = 37;
};

struct Inputs {
  Tensors sources;
  Tensor queries_SD;  // folded

  Tensors all() const {
    Tensors list = sources;
    list.push_back(queries_SD);
    return list;
  }
};

// Scores of standard deviation 3.
Inputs make_inputs(const Shape& shape, at::ScalarType dtype) {
  at::manual_seed(5);
  Inputs inputs;
  for (int64_t n = 0; n < shape.earlier + shape.sites - 1; ++n) {
    const Tensor rows = 1.5 * at::randn({shape.tokens, shape.width}, at::kDouble);
    inputs.sources.push_back(rows.to(dtype).set_requires_grad(true));
  }
  const Tensor queries = at::randn({shape.sites, shape.width}, at::kDouble);
  const at::ScalarType compute = dtype == at::kDouble ? at::kDouble : at::kFloat;
  inputs.queries_SD = (3 * queries / queries.norm(2, 1, true)).to(compute).set_requires_grad(true);
  return inputs;
}

Inputs in_float64(const Inputs& inputs) {
  const auto copy = [](const Tensor& x) {
    return x.detach().to(at::kDouble, false, /*copy=*/true).set_requires_grad(true);
  };
  Inputs copies;
  for (const Tensor& source : inputs.sources) copies.sources.push_back(copy(source));
  copies.queries_SD = copy(inputs.queries_SD);
  return copies;
}

Tensors expected_sites(const Shape& shape, const Inputs& inputs) {
  const Tensor no_gain = at::ones({shape.width}, at::kDouble);
  Tensors hs;
  for (int64_t s = 0; s < shape.sites; ++s) {
    const auto read = at::TensorList(inputs.sources).slice(0, shape.earlier + s);
    hs.push_back(depth_attention_composed(read, inputs.queries_SD[s], no_gain, kEps).output);
  }
  return hs;
}

Tensors two_phase_sites(const Shape& shape, const Inputs& inputs) {
  const at::TensorList sources(inputs.sources);
  const auto [outputs, maxima, sums] =
      phase_one(sources.slice(0, shape.earlier), inputs.queries_SD);
  Tensors hs;
  for (int64_t s = 0; s < shape.sites; ++s) {
    hs.push_back(phase_two(outputs[s], maxima[s], sums[s], sources.slice(shape.earlier, s),
                           inputs.queries_SD[s]));
  }
  return hs;
}

Tensors gradients(const Tensors& hs, const Inputs& inputs) {
  at::manual_seed(11);
  Tensors grads;
  for (const Tensor& h : hs) {
    grads.push_back(at::randn(h.sizes(), at::kDouble).to(h.scalar_type()));
  }
  torch::autograd::backward(hs, grads);
  Tensors all;
  for (const Tensor& input : inputs.all()) all.push_back(input.grad());
  return all;
}

class PhaseOperations : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static void check(const Shape& shape) {
    SCOPED_TRACE(::testing::Message()
                 << shape.earlier << " earlier sources, " << shape.sites << " sites, "
                 << shape.tokens << " tokens, width " << shape.width);
    const Inputs inputs = make_inputs(shape, GetParam()), reference = in_float64(inputs);
    const Tensors expected = expected_sites(shape, reference);
    const Tensors actual = two_phase_sites(shape, inputs);
    // As two_phase.h promises.
    const bool coarse = GetParam() == at::kBFloat16;
    const double tolerance = testing::tolerance(GetParam()) * (coarse ? 3 : 1);
    const double grad_tolerance = testing::tolerance(GetParam()) * (coarse ? 25 : 3);
    for (size_t s = 0; s < actual.size(); ++s) {
      EXPECT_TRUE(close(actual[s], expected[s], tolerance)) << "site " << s;
    }
    const Tensors is = gradients(actual, inputs), should = gradients(expected, reference);
    double largest = testing::kSmallestMagnitude;
    for (const Tensor& gradient : should) {
      if (gradient.numel() > 0) largest = std::max(largest, gradient.abs().max().item<double>());
    }
    for (size_t i = 0; i < is.size(); ++i) {
      EXPECT_TRUE(close(is[i], should[i], grad_tolerance, 0.1 * largest)) << "gradient " << i;
    }
    // What is not kept for a backward changes no bit.
    const at::NoGradGuard no_grad;
    const Tensors again = two_phase_sites(shape, inputs);
    for (size_t s = 0; s < actual.size(); ++s) EXPECT_TRUE(at::equal(again[s], actual[s])) << s;
  }
};

TEST_P(PhaseOperations, EqualTheSinglePassOnEveryInstructionSet) {
  testing::on_every_target([] {
    for (const int64_t earlier : {1, 2, 5, 13}) check({.earlier = earlier, .sites = 6});
  });
}

TEST_P(PhaseOperations, EveryWidth) {
  for (const int64_t width : {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 127}) {
    check({.earlier = 3, .sites = 3, .tokens = 5, .width = width});
  }
}

TEST_P(PhaseOperations, EveryNumberOfTokens) {
  for (const int64_t tokens : {0, 1, 2, 7, 130}) {
    check({.earlier = 4, .sites = 3, .tokens = tokens, .width = 33});
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, PhaseOperations,
                         ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

// float16 has no kernel.
TEST(PhaseOperations, AreComposedWhereThereIsNoKernel) {
  const Shape shape = {.earlier = 4, .sites = 3};
  const Inputs half = make_inputs(shape, at::kHalf), exact = in_float64(half);
  const Tensors actual = two_phase_sites(shape, half), expected = expected_sites(shape, exact);
  for (size_t s = 0; s < actual.size(); ++s) EXPECT_TRUE(close(actual[s], expected[s], 2e-3)) << s;
  const Tensors is = gradients(actual, half), should = gradients(expected, exact);
  for (size_t i = 0; i < is.size(); ++i) EXPECT_TRUE(close(is[i], should[i], 1e-2)) << i;
}

// What the comparison would miss if weights did not matter.
TEST(PhaseOperationMistakes, AreSeen) {
  const Shape shape = {.earlier = 4, .sites = 3};
  const Inputs inputs = make_inputs(shape, at::kDouble);
  const Tensors right = expected_sites(shape, inputs);
  Inputs swapped = inputs, dropped = inputs;
  swapped.queries_SD = inputs.queries_SD.flip(0);
  dropped.sources[5] = at::zeros_like(inputs.sources[5]);
  EXPECT_FALSE(close(two_phase_sites(shape, swapped)[0], right[0]));
  EXPECT_FALSE(close(two_phase_sites(shape, dropped)[2], right[2]));
}

TEST(PhaseOperations, RefuseWhatDoesNotFit) {
  const Inputs inputs = make_inputs({.earlier = 2, .sites = 1}, at::kFloat);
  const Tensor queries = inputs.queries_SD.detach();
  EXPECT_THROW(phase_one({}, queries), std::exception);
  EXPECT_THROW(phase_one(inputs.sources, queries.narrow(1, 0, 5)), std::exception);
  EXPECT_THROW(phase_one(inputs.sources, queries.to(at::kDouble)), std::exception);
  const auto [outputs, maxima, sums] = phase_one(inputs.sources, queries);
  const Tensor &o = outputs[0], &max = maxima[0], &sum = sums[0], query = queries[0];
  EXPECT_THROW(phase_two(o, max.narrow(0, 0, 1), sum, {}, query), std::exception);
  EXPECT_THROW(phase_two(o, max, sum.to(at::kDouble), {}, query), std::exception);
  EXPECT_THROW(phase_two(o, max, sum, {o.narrow(0, 0, 1)}, query), std::exception);
}

}  // namespace
}  // namespace attnres::phase_operations_test
