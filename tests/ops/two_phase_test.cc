// The two-phase schedule against depth attention composed of tensor operations in float64, for
// every storage type and every instruction set of this machine.
#include "attnres/ops/depth_attention/two_phase.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <vector>

#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/depth_attention/phases.h"
#include "attnres/support/error.h"
#include "tests/ops/every_target.h"
#include "tests/tolerances.h"

namespace attnres::two_phase_test {
namespace {

using at::Tensor;
using testing::close;

constexpr double kEps = 1e-6, kNormEps = 1;  // a large one: its term in the gradient must show

// Blocks of S sites; the last one may be short. The sublayers' outputs are given.
struct Shape {
  int64_t earlier;   // sources when the group begins
  int64_t finished;  // sources that are finished inside the group, before its first site
  int64_t sites;     // of the group; each but the first reads one more output
  bool sums = true;  // outputs make a partial sum; else each is a source
  int64_t tokens = 3, width = 37;
};

struct Inputs {
  std::vector<Tensor> sources, outputs, queries, key_gains, norm_gains;

  std::vector<Tensor> all() const {
    std::vector<Tensor> list;
    for (const auto* part : {&sources, &outputs, &queries, &key_gains, &norm_gains}) {
      list.insert(list.end(), part->begin(), part->end());
    }
    return list;
  }
};

// Leaves with values that matter: scores of standard deviation 3, gains of 0.5 to 1.5.
Inputs make_inputs(const Shape& shape, at::ScalarType dtype) {
  at::manual_seed(7);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const auto rows = [&] { return 1.5 * at::randn({shape.tokens, shape.width}, options); };
  Inputs inputs;
  for (int64_t i = 0; i < shape.earlier + shape.finished; ++i) inputs.sources.push_back(rows());
  for (int64_t s = 0; s < shape.sites; ++s) {
    if (s > 0) inputs.outputs.push_back(rows());
    const Tensor query = at::randn({shape.width}, options);
    inputs.queries.push_back(3 * query / std::max(1e-3, query.norm().item<double>()));
    inputs.key_gains.push_back(0.5 + at::rand({shape.width}, options));
    inputs.norm_gains.push_back(0.5 + at::rand({shape.width}, options));
  }
  for (auto* part :
       {&inputs.sources, &inputs.outputs, &inputs.queries, &inputs.key_gains, &inputs.norm_gains}) {
    for (Tensor& tensor : *part) tensor = tensor.to(dtype).set_requires_grad(true);
  }
  return inputs;
}

Inputs in_float64(const Inputs& inputs) {
  Inputs copies = inputs;
  for (auto* part :
       {&copies.sources, &copies.outputs, &copies.queries, &copies.key_gains, &copies.norm_gains}) {
    for (Tensor& tensor : *part) {
      tensor = tensor.detach().to(at::kDouble, false, /*copy=*/true).set_requires_grad(true);
    }
  }
  return copies;
}

// The sites' normalised inputs, by the formulas.
std::vector<Tensor> expected_sites(const Shape& shape, const Inputs& inputs) {
  std::vector<Tensor> sources = inputs.sources, xs;
  Tensor partial;
  for (int64_t s = 0; s < shape.sites; ++s) {
    if (s > 0 && shape.sums) {
      partial = partial.defined() ? partial + inputs.outputs[s - 1] : inputs.outputs[s - 1];
    } else if (s > 0) {
      sources.push_back(inputs.outputs[s - 1]);
    }
    std::vector<Tensor> read = sources;
    if (partial.defined()) read.push_back(partial);
    const Tensor h =
        depth_attention_composed(read, inputs.queries[s], inputs.key_gains[s], kEps).output;
    xs.push_back(inputs.norm_gains[s] * h * at::rsqrt(h.square().mean(-1, true) + kNormEps));
  }
  return xs;
}

// The same by the schedule.
std::vector<Tensor> scheduled_sites(const Shape& shape, const Inputs& inputs) {
  std::vector<DepthSource> sources;
  for (const Tensor& source : inputs.sources) sources.emplace_back(source);
  std::vector<DepthQuery> queries;
  for (int64_t s = 0; s < shape.sites; ++s) {
    queries.push_back({inputs.queries[s], inputs.key_gains[s]});
  }
  std::vector<EarlierSources> earlier;
  if (shape.earlier > 0) earlier = depth_attention_phase_one(sources, shape.earlier, queries, kEps);

  std::vector<Tensor> xs;
  Tensor partial;
  for (int64_t s = 0; s < shape.sites; ++s) {
    SiteSources site;
    if (shape.earlier > 0) site.earlier = &earlier[s];
    if (s > 0 && !shape.sums) sources.emplace_back(inputs.outputs[s - 1]);
    site.sources = &sources;
    site.first_recent = shape.earlier;
    if (shape.sums) {
      site.partial = partial;
      if (s > 0) site.pending = inputs.outputs[s - 1];
    }
    const SiteInput input =
        depth_attention_phase_two(site, queries[s], kEps, inputs.norm_gains[s], kNormEps);
    partial = input.partial;
    xs.push_back(input.x);
  }
  return xs;
}

using Sites = std::function<std::vector<Tensor>(const Shape&, const Inputs&)>;

struct Outcome {
  std::vector<Tensor> xs, gradients;
};

// The sites, and the gradients of every input for fixed random gradients of the sites.
Outcome run(const Sites& sites, const Shape& shape, const Inputs& inputs) {
  Outcome outcome;
  outcome.xs = sites(shape, inputs);
  at::manual_seed(11);
  std::vector<Tensor> gradients;
  for (const Tensor& x : outcome.xs) {
    gradients.push_back(at::randn(x.sizes(), at::kDouble).to(x.scalar_type()));
  }
  torch::autograd::backward(outcome.xs, gradients);
  for (const Tensor& input : inputs.all()) outcome.gradients.push_back(input.grad());
  return outcome;
}

const std::vector<Shape> kShapes = {
    {.earlier = 1, .finished = 0, .sites = 1},
    {.earlier = 5, .finished = 0, .sites = 3},
    {.earlier = 3, .finished = 2, .sites = 4},
    {.earlier = 0, .finished = 1, .sites = 3},
    {.earlier = 2, .finished = 0, .sites = 9},
    {.earlier = 13, .finished = 1, .sites = 5, .sums = false},
    {.earlier = 27, .finished = 0, .sites = 2, .sums = false},
    {.earlier = 0, .finished = 2, .sites = 6, .sums = false},
};

int calls_of_fallback = 0;

template <auto phase>
struct Counted;
template <class Result, class... Arguments, Result (*phase)(Arguments...)>
struct Counted<phase> {
  static Result call(Arguments... arguments) {
    ++calls_of_fallback;
    return phase(arguments...);
  }
};

// While it lives, the operations of the dispatcher are tensor operations on tensors of this key, as
// on a device without kernels.
class ByFallback {
 public:
  explicit ByFallback(c10::DispatchKey key)
      : library_(torch::Library::IMPL, "attnres", key, __FILE__, __LINE__) {
    library_.impl("depth_attention_phase_one_out",
                  &call_phase_one<&Counted<&phase_one_fallback>::call>);
    library_.impl("depth_attention_phase_one_backward_out",
                  &call_phase_one_backward<&Counted<&phase_one_backward_fallback>::call>);
    library_.impl("depth_attention_phase_two_out",
                  &call_phase_two<&Counted<&phase_two_fallback>::call>);
    library_.impl("depth_attention_phase_two_backward_out",
                  &call_phase_two_backward<&Counted<&phase_two_backward_fallback>::call>);
    calls_of_fallback = 0;
  }

 private:
  torch::Library library_;
};

class TwoPhase : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void check(const Shape& shape) {
    SCOPED_TRACE(::testing::Message()
                 << shape.earlier << " earlier, " << shape.finished << " finished, " << shape.sites
                 << (shape.sums ? " summing" : "") << " sites, " << shape.tokens << " tokens, "
                 << shape.width << " channels");
    const at::ScalarType dtype = GetParam();
    const Inputs inputs = make_inputs(shape, dtype), reference = in_float64(inputs);
    const Outcome expected = run(expected_sites, shape, reference);
    const Outcome actual = run(scheduled_sites, shape, inputs);
    // As two_phase.h promises. Partial sums and o are rounded to the storage type; gradients of
    // scores are differences of sums over channels, whose every term has the rounding of the x that
    // was kept; of one channel, that is all there is.
    const double tolerance = testing::tolerance(dtype) * (dtype == at::kBFloat16 ? 3 : 1);
    const double grad_tolerance = testing::tolerance(dtype) * (dtype != at::kBFloat16 ? 3
                                                               : shape.width > 1      ? 6
                                                                                      : 25);
    for (size_t i = 0; i < expected.xs.size(); ++i) {
      EXPECT_TRUE(close(actual.xs[i], expected.xs[i], tolerance)) << "x of site " << i;
    }
    // Those of queries and gains are differences of terms as large as the other gradients; where a
    // site has one source and no choice, zero.
    double largest = 0;
    for (const Tensor& gradient : expected.gradients) {
      ASSERT_TRUE(gradient.defined());
      if (gradient.numel() > 0) largest = std::max(largest, gradient.abs().max().item<double>());
    }
    for (size_t i = 0; i < expected.gradients.size(); ++i) {
      ASSERT_TRUE(actual.gradients[i].defined()) << "gradient " << i;
      EXPECT_TRUE(close(actual.gradients[i], expected.gradients[i], grad_tolerance,
                        std::max(0.1 * largest, testing::kSmallestMagnitude)))
          << "gradient " << i;
    }
  }
};

TEST_P(TwoPhase, EqualsTheSinglePassOnEveryInstructionSet) {
  testing::on_every_target([&] {
    for (const Shape& shape : kShapes) check(shape);
  });
}

TEST_P(TwoPhase, EveryWidth) {
  for (const int64_t width : {1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 65, 127, 257}) {
    check({.earlier = 4, .finished = 1, .sites = 3, .tokens = 5, .width = width});
  }
}

TEST_P(TwoPhase, EveryNumberOfTokens) {
  for (const int64_t tokens : {0, 1, 2, 7, 63, 130, 300}) {
    check({.earlier = 4, .finished = 0, .sites = 3, .tokens = tokens, .width = 33});
  }
}

TEST_P(TwoPhase, EqualsTheSinglePassByTensorOperations) {
  const ByFallback by_fallback(c10::DispatchKey::CPU);
  for (const Shape& shape : kShapes) {
    calls_of_fallback = 0;
    check(shape);
    const int64_t phases = shape.sites + (shape.earlier > 0 ? 1 : 0);
    EXPECT_EQ(calls_of_fallback, 2 * phases);  // forward and backward
  }
  check({.earlier = 4, .finished = 1, .sites = 3, .tokens = 0, .width = 33});
  check({.earlier = 4, .finished = 1, .sites = 3, .tokens = 5, .width = 1});
}

INSTANTIATE_TEST_SUITE_P(Dtypes, TwoPhase,
                         ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

// What the comparison above would miss if weights did not matter.
TEST(TwoPhaseMistakes, AreSeen) {
  const Shape shape = {.earlier = 5, .finished = 0, .sites = 3};
  const Inputs inputs = make_inputs(shape, at::kDouble);
  const std::vector<Tensor> right = expected_sites(shape, inputs);
  Inputs swapped = inputs, dropped = inputs;
  std::swap(swapped.queries[0], swapped.queries[1]);
  dropped.sources[4] = at::zeros_like(inputs.sources[4]);
  EXPECT_FALSE(close(scheduled_sites(shape, swapped)[0], right[0]));
  EXPECT_FALSE(close(scheduled_sites(shape, dropped)[2], right[2]));
}

// h cannot be had back from x where a gain is zero.
void check_zero_norm_gains(at::ScalarType dtype) {
  const Shape shape = {.earlier = 3, .finished = 0, .sites = 2};
  Inputs inputs = make_inputs(shape, dtype);
  for (Tensor& gain : inputs.norm_gains) gain.detach().narrow(0, 3, 4).zero_();
  const Inputs reference = in_float64(inputs);
  const Outcome expected = run(expected_sites, shape, reference);
  const Outcome actual = run(scheduled_sites, shape, inputs);
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    const double tolerance = testing::tolerance(dtype) * 3;
    EXPECT_TRUE(close(actual.gradients[i], expected.gradients[i], tolerance)) << i;
  }
}

TEST(TwoPhase, ZeroNormGainsHaveGradients) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) check_zero_norm_gains(dtype);
  const ByFallback by_fallback(c10::DispatchKey::CPU);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) check_zero_norm_gains(dtype);
}

// The backward has the normalised h from x, whatever the gain.
TEST(TwoPhase, XGivesTheNormalisedRowsBack) {
  const Tensor source = at::randn({3, 8}), query = at::randn({1, 8}), gain = at::ones({8});
  gain.select(0, 3).zero_();
  gain.select(0, 5).fill_(-1e-30);
  const Tensor expected = source * at::rsqrt(source.square().mean(-1, true) + kNormEps);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool for_backward : {false, true}) {
      const std::vector<Tensor> sources = {source.to(dtype)}, inverse_rms = {at::empty({3})};
      const PhaseTwoResult result =
          allocate_phase_two(sources[0], 1, /*has_earlier=*/false, /*has_norm=*/true, for_backward);
      const Tensor prepared = prepare_norm_gain(gain, sources[0], for_backward);
      phase_two_out({.recent = {sources, inverse_rms},
                     .queries_SD = query,
                     .eps = kEps,
                     .norm_gain_D = prepared,
                     .norm_eps = kNormEps},
                    result);
      const Tensor x = result.x.to(at::kFloat);
      EXPECT_TRUE(close(x, gain * expected, testing::tolerance(dtype)));
      EXPECT_EQ(x.select(1, 3).count_nonzero().item<int64_t>(), for_backward ? 3 : 0);
      if (for_backward) {
        EXPECT_TRUE(close(x / prepared, expected, testing::tolerance(dtype)));
      }
    }
  }
}

// On a device whose numbers the host cannot read, neither the schedule nor the tensor operations
// ask for any: a meta tensor has none.
TEST(TwoPhase, ReadsNoNumberOnTheHost) {
  calls_of_fallback = 0;
  for (const bool by_fallback : {false, true}) {
    std::optional<ByFallback> fallback;
    if (by_fallback) fallback.emplace(c10::DispatchKey::Meta);
    for (const Shape& shape : kShapes) {
      Inputs inputs = make_inputs(shape, at::kBFloat16);
      for (auto* part : {&inputs.sources, &inputs.outputs, &inputs.queries, &inputs.key_gains,
                         &inputs.norm_gains}) {
        for (Tensor& tensor : *part) tensor = tensor.detach().to(at::kMeta).set_requires_grad(true);
      }
      const std::vector<Tensor> xs = scheduled_sites(shape, inputs);
      std::vector<Tensor> gradients;
      for (const Tensor& x : xs) {
        EXPECT_EQ(x.sizes(), inputs.sources[0].sizes());
        EXPECT_EQ(x.scalar_type(), at::kBFloat16);
        gradients.push_back(at::empty_like(x));
      }
      torch::autograd::backward(xs, gradients);
      for (const Tensor& input : inputs.all()) EXPECT_EQ(input.grad().sizes(), input.sizes());
    }
    EXPECT_EQ(calls_of_fallback > 0, by_fallback);
    calls_of_fallback = 0;
  }
}

// float16 has no kernel.
TEST(TwoPhase, IsComposedWhereThereIsNoKernel) {
  for (const Shape& shape : kShapes) {
    const Inputs inputs = make_inputs(shape, at::kHalf), reference = in_float64(inputs);
    const Outcome expected = run(expected_sites, shape, reference);
    const Outcome actual = run(scheduled_sites, shape, inputs);
    for (size_t i = 0; i < expected.xs.size(); ++i) {
      EXPECT_TRUE(close(actual.xs[i], expected.xs[i], 4e-3)) << "x of site " << i;
    }
    double largest = 0;
    for (const Tensor& gradient : expected.gradients) {
      largest = std::max(largest, gradient.abs().max().item<double>());
    }
    for (size_t i = 0; i < expected.gradients.size(); ++i) {
      EXPECT_TRUE(close(actual.gradients[i], expected.gradients[i], 2e-2, 0.1 * largest)) << i;
    }
    const at::NoGradGuard no_grad;
    const std::vector<Tensor> again = scheduled_sites(shape, inputs);
    for (size_t i = 0; i < again.size(); ++i) EXPECT_TRUE(at::equal(again[i], actual.xs[i])) << i;
  }
}

TEST(TwoPhase, SameBitsForAnyNumberOfThreads) {
  const Shape shape = {.earlier = 5, .finished = 1, .sites = 4, .tokens = 700, .width = 130};
  const int before = at::get_num_threads();
  std::vector<Tensor> first;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    const Inputs inputs = make_inputs(shape, at::kFloat);
    Outcome outcome = run(scheduled_sites, shape, inputs);
    std::vector<Tensor> all = outcome.xs;
    all.insert(all.end(), outcome.gradients.begin(), outcome.gradients.end());
    if (first.empty()) first = all;
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(at::equal(all[i], first[i])) << i;
  }
  at::set_num_threads(before);
}

TEST(TwoPhase, ASiteDoesNotDependOnWhichSitesShareItsPass) {
  const Shape shape = {.earlier = 14, .finished = 0, .sites = 6, .tokens = 9, .width = 100};
  const Inputs inputs = make_inputs(shape, at::kFloat);
  const at::NoGradGuard no_grad;
  std::vector<DepthSource> sources;
  for (const Tensor& source : inputs.sources) sources.emplace_back(source);
  std::vector<DepthQuery> queries;
  for (int64_t s = 0; s < shape.sites; ++s) {
    queries.push_back({inputs.queries[s], inputs.key_gains[s]});
  }
  const auto together = depth_attention_phase_one(sources, shape.earlier, queries, kEps);
  for (int64_t s = 0; s < shape.sites; ++s) {
    const auto alone = depth_attention_phase_one(sources, shape.earlier, {queries[s]}, kEps);
    EXPECT_TRUE(at::equal(alone[0].output, together[s].output)) << s;
    EXPECT_TRUE(at::equal(alone[0].max[0], together[s].max[together[s].row])) << s;
    EXPECT_TRUE(at::equal(alone[0].sum[0], together[s].sum[together[s].row])) << s;
  }
}

// Scores beyond what e^x can hold.
// Without gradients less is allocated and asked of the dispatcher. Gains of another dtype than the
// rows, and with gaps between their numbers, are read as they are.
TEST(TwoPhase, IsTheSameWithoutGradients) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const int64_t tokens : {1, 3}) {
      for (const int64_t earlier : {0, 2}) {
        const Shape shape{.earlier = earlier, .finished = 1, .sites = 3, .tokens = tokens};
        Inputs inputs = make_inputs(shape, dtype);
        const std::vector<Tensor> recorded = scheduled_sites(shape, inputs);
        const at::NoGradGuard no_grad;
        const std::vector<Tensor> plain = scheduled_sites(shape, inputs);
        for (auto* part : {&inputs.queries, &inputs.key_gains, &inputs.norm_gains}) {
          for (Tensor& tensor : *part) {
            const at::ScalarType wide = dtype == at::kBFloat16 ? at::kFloat : dtype;
            tensor = at::stack({tensor, tensor + 1}, 1).to(wide).select(1, 0);
            ASSERT_FALSE(tensor.is_contiguous());
          }
        }
        const std::vector<Tensor> strided = scheduled_sites(shape, inputs);
        inputs.queries[1] = inputs.queries[1] * 1.5;
        const std::vector<Tensor> other = scheduled_sites(shape, inputs);
        for (size_t s = 0; s < recorded.size(); ++s) {
          EXPECT_FALSE(plain[s].requires_grad());
          EXPECT_TRUE(plain[s].equal(recorded[s])) << s;
          EXPECT_TRUE(strided[s].equal(recorded[s])) << s;
          EXPECT_EQ(other[s].equal(recorded[s]), s != 1) << s;
        }
      }
    }
  }
}

TEST(TwoPhase, SaturatedScores) {
  const Shape shape = {.earlier = 14, .finished = 1, .sites = 3, .tokens = 20, .width = 64};
  Inputs inputs = make_inputs(shape, at::kFloat);
  for (Tensor& query : inputs.queries) query.detach().mul_(1000.0 / 3);
  const Inputs reference = in_float64(inputs);
  const auto expected = expected_sites(shape, reference);
  const auto actual = scheduled_sites(shape, inputs);
  for (size_t i = 0; i < actual.size(); ++i) {
    // 1e-6 (1 + max |score|): the scores' own rounding.
    EXPECT_TRUE(close(actual[i], expected[i], 1e-6 * (1 + 1000 * 8)));
    EXPECT_TRUE(actual[i].isfinite().all().item<bool>());
  }
}

// A source's gradient is one tensor: what the sites add, and what comes by other ways.
TEST(TwoPhase, GradientsOfASourceAddUp) {
  const Shape shape = {.earlier = 3, .finished = 0, .sites = 2};
  const Inputs inputs = make_inputs(shape, at::kDouble), reference = in_float64(inputs);
  const auto loss = [&](const Inputs& of, const std::vector<Tensor>& xs, const Tensor& source) {
    return (xs[0] * xs[1]).sum() + (source * source).sum() + 0 * of.sources[0].sum();
  };
  std::vector<DepthSource> sources;
  for (const Tensor& source : inputs.sources) sources.emplace_back(source);
  std::vector<DepthQuery> queries;
  for (int64_t s = 0; s < 2; ++s) queries.push_back({inputs.queries[s], inputs.key_gains[s]});
  // Two groups read the same sources.
  auto first = depth_attention_phase_one(sources, 3, {queries[0]}, kEps);
  auto second = depth_attention_phase_one(sources, 3, {queries[1]}, kEps);
  std::vector<Tensor> xs;
  for (int64_t s = 0; s < 2; ++s) {
    SiteSources site;
    site.earlier = s == 0 ? first.data() : second.data();
    if (s == 1) site.pending = inputs.outputs[0];
    xs.push_back(
        depth_attention_phase_two(site, queries[s], kEps, inputs.norm_gains[s], kNormEps).x);
  }
  const Tensor total = loss(inputs, xs, sources[1].value());
  torch::autograd::backward({total}, {}, /*retain_graph=*/true);
  const Tensor wanted = loss(reference, expected_sites(shape, reference), reference.sources[1]);
  torch::autograd::backward({wanted}, {});
  for (size_t i = 0; i < inputs.all().size(); ++i) {
    EXPECT_TRUE(close(inputs.all()[i].grad(), reference.all()[i].grad())) << i;
  }
  // A second backward adds the same again.
  torch::autograd::backward({total}, {});
  for (size_t i = 0; i < inputs.all().size(); ++i) {
    EXPECT_TRUE(close(inputs.all()[i].grad(), 2 * reference.all()[i].grad())) << i;
  }
  EXPECT_THROW(torch::autograd::backward({total}, {}), std::exception);
}

TEST(TwoPhase, NoSecondDerivative) {
  const Shape shape = {.earlier = 2, .finished = 0, .sites = 1};
  const Inputs inputs = make_inputs(shape, at::kDouble);
  const Tensor loss = scheduled_sites(shape, inputs)[0].sum();
  EXPECT_THROW(torch::autograd::grad({loss}, {inputs.sources[0]}, {}, /*retain_graph=*/true,
                                     /*create_graph=*/true),
               Error);
}

// Rows so many that results are stored past the caches give the same bits as rows that are not.
TEST(TwoPhase, LargeTensorsAreStoredTheSame) {
  const int64_t tokens = 2500, width = 512;
  const Shape shape = {.earlier = 3, .finished = 0, .sites = 2, .tokens = tokens, .width = width};
  const Inputs inputs = make_inputs(shape, at::kFloat);
  Inputs part = inputs;
  for (auto* rows : {&part.sources, &part.outputs}) {
    for (Tensor& tensor : *rows) tensor = tensor.detach().narrow(0, 100, 50);
  }
  const std::vector<Tensor> all = scheduled_sites(shape, inputs);
  const std::vector<Tensor> some = scheduled_sites(shape, part);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(at::equal(all[i].narrow(0, 100, 50), some[i])) << i;
  }
}

TEST(TwoPhase, RefusesNothingToRead) {
  std::vector<DepthSource> none;
  const Tensor one = at::ones({4});
  EXPECT_THROW(depth_attention_phase_one(none, 0, {{one, one}}, kEps), Error);
  EXPECT_THROW(depth_attention_phase_two({}, {one, one}, kEps, one, kNormEps), Error);
}

}  // namespace
}  // namespace attnres::two_phase_test
