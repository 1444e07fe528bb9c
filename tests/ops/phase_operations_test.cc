// Both phases as the dispatcher has them, without and with a norm and an addition, against depth
// attention composed of tensor operations in float64, for every storage type and every instruction
// set of this machine.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/depth_attention/fused.h"
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

Tensors gradients(const Tensors& hs, const Tensors& inputs) {
  at::manual_seed(11);
  Tensors grads;
  for (const Tensor& h : hs) {
    grads.push_back(at::randn(h.sizes(), at::kDouble).to(h.scalar_type()));
  }
  torch::autograd::backward(hs, grads);
  Tensors all;
  for (const Tensor& input : inputs) all.push_back(input.grad());
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
    const Tensors is = gradients(actual, inputs.all()),
                  should = gradients(expected, reference.all());
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
  const Tensors is = gradients(actual, half.all()), should = gradients(expected, exact.all());
  for (size_t i = 0; i < is.size(); ++i) EXPECT_TRUE(close(is[i], should[i], 1e-2)) << i;
}

// ---- With an addition and a norm ----

constexpr double kNormEps = 1e-2;

std::tuple<Tensor, Tensor> phase_two_normed(const std::optional<Tensor>& o,
                                            const std::optional<Tensor>& max,
                                            const std::optional<Tensor>& sum, at::TensorList recent,
                                            const std::optional<Tensor>& pending,
                                            const Tensor& query, const Tensor& gain) {
  using Optional = std::optional<Tensor>;
  using Function =
      std::tuple<Tensor, Tensor>(const Optional&, const Optional&, const Optional&, at::TensorList,
                                 const Optional&, const Tensor&, double, const Tensor&, double);
  static const auto operation =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("attnres::depth_attention_phase_two_normed", "")
          .typed<Function>();
  return operation.call(o, max, sum, recent, pending, query, kEps, gain, kNormEps);
}

// Phase 1 reads `earlier` sources, none if zero; every site reads the `finished` ones after them,
// and the sum of one output more than the site before it: the shape's sources are all of these.
struct NormedInputs : Inputs {
  int64_t earlier, finished;
  Tensors gains;

  Tensors all() const {
    Tensors list = Inputs::all();
    list.insert(list.end(), gains.begin(), gains.end());
    return list;
  }
  at::TensorList outputs() const { return at::TensorList(sources).slice(earlier + finished); }
};

NormedInputs make_normed_inputs(int64_t earlier, int64_t finished, const Shape& shape,
                                at::ScalarType dtype, at::ScalarType gain_dtype) {
  NormedInputs inputs{make_inputs(shape, dtype), earlier, finished, {}};
  for (int64_t s = 0; s < shape.sites; ++s) {
    const Tensor gain = 0.5 + at::rand({shape.width}, at::kDouble);
    inputs.gains.push_back(gain.to(gain_dtype).set_requires_grad(true));
  }
  return inputs;
}

NormedInputs in_float64(const NormedInputs& inputs) {
  NormedInputs copies{
      in_float64(static_cast<const Inputs&>(inputs)), inputs.earlier, inputs.finished, {}};
  for (const Tensor& gain : inputs.gains) {
    copies.gains.push_back(gain.detach().to(at::kDouble, false, true).set_requires_grad(true));
  }
  return copies;
}

// x of every site, and the sum of all outputs.
Tensors expected_normed_sites(const NormedInputs& inputs) {
  const Tensor no_gain = at::ones_like(inputs.queries_SD[0]).detach();
  Tensors xs,
      read = at::TensorList(inputs.sources).slice(0, inputs.earlier + inputs.finished).vec();
  Tensor sum;
  for (size_t s = 0; s < inputs.gains.size(); ++s) {
    if (s > 0) sum = s > 1 ? sum + inputs.outputs()[s - 1] : inputs.outputs()[0];
    Tensors sources = read;
    if (s > 0) sources.push_back(sum);
    const Tensor h = depth_attention_composed(sources, inputs.queries_SD[s], no_gain, kEps).output;
    xs.push_back(inputs.gains[s] * h * at::rsqrt(h.square().mean(-1, true) + kNormEps));
  }
  xs.push_back(sum);
  return xs;
}

Tensors normed_sites(const NormedInputs& inputs) {
  const at::TensorList sources(inputs.sources);
  std::tuple<Tensors, Tensors, Tensors> one;
  if (inputs.earlier > 0) one = phase_one(sources.slice(0, inputs.earlier), inputs.queries_SD);
  const auto& [outputs, maxima, sums] = one;
  Tensors xs;
  Tensor sum;
  for (size_t s = 0; s < inputs.gains.size(); ++s) {
    Tensors recent = sources.slice(inputs.earlier, inputs.finished).vec();
    if (s == 1) sum = inputs.outputs()[0];
    if (s > 0) recent.push_back(sum);
    std::optional<Tensor> o, max, ell, pending;
    if (inputs.earlier > 0) o = outputs[s], max = maxima[s], ell = sums[s];
    if (s > 1) pending = inputs.outputs()[s - 1];
    const auto [x, added] =
        phase_two_normed(o, max, ell, recent, pending, inputs.queries_SD[s], inputs.gains[s]);
    xs.push_back(x);
    if (pending) sum = added;
    EXPECT_EQ(added.numel() > 0, pending.has_value() && x.numel() > 0);
  }
  xs.push_back(sum);
  return xs;
}

void check_normed(int64_t earlier, int64_t finished, const Shape& shape, at::ScalarType dtype,
                  at::ScalarType gain_dtype) {
  SCOPED_TRACE(::testing::Message()
               << earlier << " + " << finished << " sources, " << shape.sites << " sites, "
               << shape.tokens << " tokens, width " << shape.width);
  const NormedInputs inputs = make_normed_inputs(earlier, finished, shape, dtype, gain_dtype),
                     reference = in_float64(inputs);
  const Tensors expected = expected_normed_sites(reference), actual = normed_sites(inputs);
  // As two_phase.h promises.
  const bool coarse = dtype == at::kBFloat16 || dtype == at::kHalf;
  const double tolerance = testing::tolerance(dtype) * (coarse ? 3 : 1);
  const double grad_tolerance = testing::tolerance(dtype) * (coarse ? 25 : 3);
  for (size_t s = 0; s < actual.size(); ++s) {
    EXPECT_TRUE(close(actual[s], expected[s], tolerance)) << "site " << s;
  }
  const Tensors is = gradients(actual, inputs.all()), should = gradients(expected, reference.all());
  double largest = testing::kSmallestMagnitude;
  for (const Tensor& gradient : should) {
    if (gradient.numel() > 0) largest = std::max(largest, gradient.abs().max().item<double>());
  }
  for (size_t i = 0; i < is.size(); ++i) {
    // A gain may have fewer bits than what it multiplies.
    const double most = std::max(grad_tolerance, testing::tolerance(is[i].scalar_type()));
    EXPECT_TRUE(close(is[i], should[i], most, 0.1 * largest)) << "gradient " << i;
    EXPECT_EQ(is[i].scalar_type(), inputs.all()[i].scalar_type()) << "gradient " << i;
  }
  const at::NoGradGuard no_grad;
  const Tensors again = normed_sites(inputs);
  for (size_t s = 0; s < actual.size(); ++s) EXPECT_TRUE(at::equal(again[s], actual[s])) << s;
}

// The shape of a site that reads this many sources at first, and S sites.
Shape normed_shape(int64_t sources, int64_t sites, int64_t tokens, int64_t width) {
  return {.earlier = sources, .sites = sites, .tokens = tokens, .width = width};
}

TEST_P(PhaseOperations, WithANormEqualTheFormulaOnEveryInstructionSet) {
  testing::on_every_target([] {
    for (const auto& [earlier, finished] :
         std::vector<std::pair<int64_t, int64_t>>{{3, 0}, {4, 2}, {0, 1}, {0, 3}}) {
      for (const at::ScalarType gain : {GetParam(), at::kFloat}) {
        check_normed(earlier, finished, normed_shape(earlier + finished, 4, 3, 37), GetParam(),
                     gain);
      }
    }
  });
}

TEST_P(PhaseOperations, WithANormEveryWidthAndNumberOfTokens) {
  for (const int64_t width : {1, 2, 7, 8, 17, 64, 127}) {
    check_normed(2, 1, normed_shape(3, 3, 5, width), GetParam(), GetParam());
  }
  for (const int64_t tokens : {0, 1, 130}) {
    check_normed(2, 0, normed_shape(2, 3, tokens, 33), GetParam(), GetParam());
  }
}

// float16 has no kernel.
TEST(PhaseOperations, WithANormAreComposedWhereThereIsNoKernel) {
  for (const int64_t earlier : {0, 3}) {
    check_normed(earlier, 1, normed_shape(earlier + 1, 4, 3, 37), at::kHalf, at::kHalf);
  }
}

TEST(PhaseOperationMistakes, WithANormAreSeen) {
  const NormedInputs inputs =
      make_normed_inputs(3, 0, normed_shape(3, 4, 3, 37), at::kDouble, at::kDouble);
  const Tensors right = expected_normed_sites(inputs);
  NormedInputs other_gain = inputs, other_sum = inputs;
  std::swap(other_gain.gains[0], other_gain.gains[1]);
  other_sum.sources[4] = inputs.sources[5];
  EXPECT_FALSE(close(normed_sites(other_gain)[0], right[0]));
  EXPECT_FALSE(close(normed_sites(other_sum)[2], right[2]));
}

TEST(PhaseOperations, WithANormRefuseWhatDoesNotFit) {
  const NormedInputs inputs =
      make_normed_inputs(2, 1, normed_shape(3, 2, 3, 37), at::kFloat, at::kFloat);
  const at::NoGradGuard no_grad;
  const auto [outputs, maxima, sums] =
      phase_one(at::TensorList(inputs.sources).slice(0, 2), inputs.queries_SD);
  const Tensor &o = outputs[0], &max = maxima[0], &ell = sums[0], query = inputs.queries_SD[0];
  const Tensors recent = {inputs.sources[2]}, none;
  const Tensor gain = inputs.gains[0], pending = inputs.sources[3];
  EXPECT_NO_THROW(phase_two_normed(o, max, ell, recent, pending, query, gain));
  EXPECT_THROW(phase_two_normed(o, max, {}, recent, pending, query, gain), std::exception);
  EXPECT_THROW(phase_two_normed({}, {}, {}, none, {}, query, gain), std::exception);
  EXPECT_THROW(phase_two_normed(o, max, ell, none, pending, query, gain), std::exception);
  EXPECT_THROW(phase_two_normed(o, max, ell, recent, pending.narrow(0, 0, 1), query, gain),
               std::exception);
  EXPECT_THROW(phase_two_normed(o, max, ell, recent, {}, query, gain.narrow(0, 0, 5)),
               std::exception);
  EXPECT_THROW(phase_two_normed(o, max, ell, recent, {}, query, gain.to(at::kDouble)),
               std::exception);
}

TEST(Devices, WithoutAnIndexAreAnyOfTheirKind) {
  const auto same = [](const char* a, const char* b) {
    return same_device(at::Device(a), at::Device(b));
  };
  EXPECT_TRUE(same("cuda", "cuda:0"));
  EXPECT_TRUE(same("cuda:1", "cuda"));
  EXPECT_TRUE(same("cuda:1", "cuda:1"));
  EXPECT_FALSE(same("cuda:0", "cuda:1"));
  EXPECT_FALSE(same("cpu", "cuda"));
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
