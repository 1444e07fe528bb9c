// The kernels against the reference in float64, for every storage type and every instruction set
// that Highway reports for this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "attnres/ops/depth_attention/kernel.h"
#include "attnres/ops/depth_attention/reference.h"
#include "attnres/support/random.h"
#include "tests/ops/every_target.h"

namespace attnres::kernel {
namespace {

using reference::Matrix;
using reference::Vector;

constexpr double kEps = 1e-6;

template <class Storage>
Storage to_storage(double x) {
  return static_cast<Storage>(x);
}
template <>
BFloat16 to_storage<BFloat16>(double x) {
  // To the nearest, ties to even.
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(x));
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16) % 2) >> 16)};
}

template <class Storage>
double to_double(Storage x) {
  return x;
}
double to_double(BFloat16 x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}

// Those of tests/tolerances.h, which needs torch.
template <class Storage>
constexpr double kTolerance = 1e-2;
template <>
constexpr double kTolerance<float> = 1e-5;
template <>
constexpr double kTolerance<double> = 1e-12;
constexpr double kSmallest = 1e-3;

// An array that starts off a vector's alignment and notices writes beside it.
template <class T>
class GuardedArray {
 public:
  explicit GuardedArray(size_t size)
      : size_(size), memory_(size + 2 * kGuard, to_storage<T>(kCanary)) {}

  T* data() { return memory_.data() + kGuard; }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data()[i]; }

  bool guards_intact() const {
    for (size_t i = 0; i < kGuard; ++i) {
      if (to_double(memory_[i]) != kCanary) return false;
      if (to_double(memory_[size_ + kGuard + i]) != kCanary) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 17;
  static constexpr double kCanary = -77;
  size_t size_;
  std::vector<T> memory_;
};

struct Shape {
  int64_t N, T, D;
};

enum class Flavour { kPlain, kSaturated, kZeroSources };

// One problem: inputs rounded to storage, and the reference's answers for them.
template <class Storage>
class Problem {
 public:
  using Number = Compute<Storage>;

  Problem(Shape shape, Flavour flavour) : shape_(shape), folded_query_(shape.D) {
    const auto [N, T, D] = shape;
    const RandomStream random(N * 1000003 + T * 1009 + D, "kernel");
    uint64_t counter = 0;
    for (int64_t n = 0; n < N; ++n) {
      auto& source = sources_.emplace_back(T * D);
      const bool zero = flavour == Flavour::kZeroSources && n % 2 == 0;
      for (int64_t i = 0; i < T * D; ++i) {
        source[i] = to_storage<Storage>(zero ? 0 : 1.5 * random.normal(counter++));
      }
    }
    // Scores of standard deviation 2 for every width, or |w| = 1000.
    double norm = 0;
    for (int64_t k = 0; k < D; ++k) {
      query_.push_back(random.normal(counter++));
      norm += query_[k] * query_[k];
    }
    const double wanted = flavour == Flavour::kSaturated ? 1000 : 2;
    for (int64_t k = 0; k < D; ++k) {
      query_[k] *= wanted / std::sqrt(norm);
      folded_query_[k] = static_cast<Number>(query_[k]);
      query_[k] = folded_query_[k];
    }
    for (int64_t i = 0; i < T * D; ++i) {
      grad_output_[i] = to_storage<Storage>(random.normal(counter++));
    }
    for (int64_t i = 0; i < N * T; ++i) {
      grad_weights_[i] = static_cast<Number>(random.normal(counter++));
    }
    solve();
  }

  // Runs the kernel on all tokens, in two ranges, and compares.
  void check() {
    const auto [N, T, D] = shape_;
    GuardedArray<Storage> output(T * D);
    GuardedArray<Number> weights(N * T), scores(N * T), inverse_rms(N * T), grad_query(D);
    std::vector<Number*> rms_pointers;
    for (int64_t n = 0; n < N; ++n) rms_pointers.push_back(inverse_rms.data() + n * T);
    const auto no = std::make_unique<bool[]>(sources_.size());
    std::vector<const Storage*> source_pointers;
    std::vector<GuardedArray<Storage>> grad_sources(N, GuardedArray<Storage>(T * D));
    std::vector<Storage*> grad_pointers;
    for (int64_t n = 0; n < N; ++n) {
      source_pointers.push_back(sources_[n].data());
      const bool unwanted = N > 2 && n == 1;
      grad_pointers.push_back(unwanted ? nullptr : grad_sources[n].data());
    }
    const DepthAttentionInputs<Storage> inputs{
        source_pointers.data(), folded_query_.data(), N, 1, T, D};
    Storage* const outputs[] = {output.data()};
    const DepthAttentionForward<Storage> forward{.inputs = inputs,
                                                 .eps = kEps,
                                                 .complete = true,
                                                 .inverse_rms_N = rms_pointers.data(),
                                                 .rms_known_N = no.get(),
                                                 .outputs_S = outputs,
                                                 .max_ST = nullptr,
                                                 .sum_ST = nullptr,
                                                 .scores_SNT = scores.data(),
                                                 .weights_SNT = weights.data()};
    depth_attention_forward(forward, 0, T / 2);
    depth_attention_forward(forward, T / 2, T);

    for (int64_t k = 0; k < D; ++k) grad_query[k] = 0;
    const Storage* const grad_outputs[] = {grad_output_.data()};
    const DepthAttentionBackward<Storage> backward{.inputs = inputs,
                                                   .inverse_rms_N = rms_pointers.data(),
                                                   .scores_SNT = scores.data(),
                                                   .weights_SNT = weights.data(),
                                                   .grad_outputs_S = grad_outputs,
                                                   .grad_sum_ST = nullptr,
                                                   .grad_weights_SNT = grad_weights_.data(),
                                                   .grad_sources_N = grad_pointers.data(),
                                                   .accumulate_N = no.get()};
    depth_attention_backward(backward, 0, T / 2, grad_query.data());
    depth_attention_backward(backward, T / 2, T, grad_query.data());

    const double number_tolerance = kTolerance<Number> * conditioning_;
    const double storage_tolerance = std::max(number_tolerance, kTolerance<Storage>);
    expect_close("output", output, output_, storage_tolerance);
    expect_close("weights", weights, weights_, number_tolerance);
    expect_close("inverse_rms", inverse_rms, inverse_rms_, number_tolerance);
    // The saved weights, and so every gradient, carry the weights' own error.
    expect_close("grad_query", grad_query, grad_query_, number_tolerance);
    for (int64_t n = 0; n < N; ++n) {
      if (grad_pointers[n]) {
        expect_close("grad_source", grad_sources[n], grad_sources_[n], storage_tolerance);
      } else {
        EXPECT_TRUE(grad_sources[n].guards_intact());
      }
    }
  }

 private:
  void solve() {
    const auto [N, T, D] = shape_;
    const Vector<double> one(D, 1);
    output_.resize(T * D);
    weights_.resize(N * T);
    inverse_rms_.resize(N * T);
    grad_sources_.assign(N, Vector<double>(T * D));
    grad_query_.assign(D, 0);
    for (int64_t t = 0; t < T; ++t) {
      Matrix<double> v(N, Vector<double>(D));
      Vector<double> dh(D), dalpha(N);
      for (int64_t k = 0; k < D; ++k) {
        for (int64_t n = 0; n < N; ++n) v[n][k] = to_double(sources_[n][t * D + k]);
        dh[k] = to_double(grad_output_[t * D + k]);
      }
      for (int64_t n = 0; n < N; ++n) dalpha[n] = grad_weights_[n * T + t];
      const auto [h, alpha, r] = reference::depth_attention(v, query_, one, kEps);
      const auto grad = reference::depth_attention_backward(v, query_, one, kEps, dh, dalpha);
      for (int64_t k = 0; k < D; ++k) {
        output_[t * D + k] = h[k];
        grad_query_[k] += grad.query_D[k];
      }
      for (int64_t n = 0; n < N; ++n) {
        weights_[n * T + t] = alpha[n];
        inverse_rms_[n * T + t] = r[n];
        std::copy_n(grad.sources_ND[n].data(), D, grad_sources_[n].data() + t * D);
        conditioning_ = std::max(conditioning_, 1 + std::abs(reference::dot(query_, v[n]) * r[n]));
      }
    }
  }

  template <class T>
  void expect_close(const char* what, GuardedArray<T>& actual, Vector<double>& expected,
                    double tolerance) {
    EXPECT_TRUE(actual.guards_intact()) << what << " written out of bounds";
    double largest = kSmallest, difference = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      const double of_one = std::abs(to_double(actual[i]) - expected[i]);
      difference = std::isnan(of_one) ? INFINITY : std::max(difference, of_one);
    }
    EXPECT_LE(difference / largest, tolerance)
        << what << " for N = " << shape_.N << ", T = " << shape_.T << ", D = " << shape_.D;
  }

  Shape shape_;
  std::vector<GuardedArray<Storage>> sources_;
  Vector<double> query_;
  GuardedArray<Number> folded_query_;
  GuardedArray<Storage> grad_output_{static_cast<size_t>(shape_.T * shape_.D)};
  GuardedArray<Number> grad_weights_{static_cast<size_t>(shape_.N * shape_.T)};
  Vector<double> output_, weights_, inverse_rms_, grad_query_;
  Matrix<double> grad_sources_;
  // An error of one rounding in a score is this much larger in a weight.
  double conditioning_ = 1;
};

template <class Storage>
class DepthAttentionKernel : public ::testing::Test {
 protected:
  void check_on_every_target(Shape shape, Flavour flavour) {
    Problem<Storage> problem(shape, flavour);
    testing::on_every_target([&] { problem.check(); });
  }
};

using StorageTypes = ::testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(DepthAttentionKernel, StorageTypes);

const std::vector<int64_t> kWidths = {1,  2,  3,  4,  5,  7,  8,   9,   15,  16, 17,
                                      31, 32, 33, 63, 64, 65, 100, 127, 128, 257};

TYPED_TEST(DepthAttentionKernel, EveryNumberOfSources) {
  for (int64_t sources = 1; sources <= 33; ++sources) {
    this->check_on_every_target({sources, 3, 37}, Flavour::kPlain);
  }
}

TYPED_TEST(DepthAttentionKernel, EveryWidth) {
  for (const int64_t width : kWidths) {
    for (const int64_t sources : {1, 2, 5, 9}) {
      this->check_on_every_target({sources, 4, width}, Flavour::kPlain);
    }
  }
}

// Up to more than one tile in a range.
TYPED_TEST(DepthAttentionKernel, EveryNumberOfTokens) {
  for (const int64_t tokens : {0, 1, 2, 7, 63, 130, 300}) {
    for (const int64_t width : {5, 16, 33}) {
      this->check_on_every_target({3, tokens, width}, Flavour::kPlain);
    }
  }
}

TYPED_TEST(DepthAttentionKernel, SaturatedScores) {
  for (const int64_t width : kWidths) {
    this->check_on_every_target({6, 5, width}, Flavour::kSaturated);
  }
}

TYPED_TEST(DepthAttentionKernel, ZeroSources) {
  for (const int64_t width : kWidths) {
    this->check_on_every_target({5, 4, width}, Flavour::kZeroSources);
  }
}

// What is as large as this, in whole cache lines, is stored past the caches: the same bits.
TYPED_TEST(DepthAttentionKernel, LargeResultsAreTheSameAtAnyAlignment) {
  constexpr int64_t kTokens = 1 << 16, kWidth = 32, kLine = 64;
  using Number = Compute<TypeParam>;
  constexpr int64_t kNumbers = kTokens * kWidth;
  const auto fill = [](const char* name, auto& numbers) {
    using T = typename std::decay_t<decltype(numbers)>::value_type;
    const RandomStream random(1, name);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = to_storage<T>(random.normal(i));
  };
  std::vector<TypeParam> sources(2 * kNumbers), grad_output(kNumbers);
  std::vector<Number> query(kWidth);
  fill("sources", sources);
  fill("grad_output", grad_output);
  fill("query", query);
  const TypeParam* const source_pointers[] = {&sources[0], &sources[kNumbers]};
  const DepthAttentionInputs<TypeParam> inputs{source_pointers, query.data(), 2, 1,
                                               kTokens,         kWidth};
  std::vector<Number> inverse_rms(2 * kTokens), scores(2 * kTokens), weights(2 * kTokens);
  Number* const rms[] = {&inverse_rms[0], &inverse_rms[kTokens]};
  const bool no[] = {false, false};
  // The output and both gradients, `offset` numbers after the beginning of a cache line.
  const auto results = [&](int64_t offset) {
    constexpr int64_t kEach = kNumbers + kLine;  // in whole lines, and room for the offset
    std::vector<TypeParam> memory(3 * kEach + kLine);
    auto* begin = memory.data();
    while (reinterpret_cast<uintptr_t>(begin) % kLine != 0) ++begin;
    const auto at = [&](int64_t i) { return begin + i * kEach + offset; };
    TypeParam* const outputs[] = {at(0)};
    TypeParam* const grads[] = {at(1), at(2)};
    const DepthAttentionForward<TypeParam> forward{.inputs = inputs,
                                                   .eps = kEps,
                                                   .complete = true,
                                                   .inverse_rms_N = rms,
                                                   .rms_known_N = no,
                                                   .outputs_S = outputs,
                                                   .max_ST = nullptr,
                                                   .sum_ST = nullptr,
                                                   .scores_SNT = scores.data(),
                                                   .weights_SNT = weights.data()};
    depth_attention_forward(forward, 0, kTokens);
    const TypeParam* const grad_outputs[] = {grad_output.data()};
    const DepthAttentionBackward<TypeParam> backward{.inputs = inputs,
                                                     .inverse_rms_N = rms,
                                                     .scores_SNT = scores.data(),
                                                     .weights_SNT = weights.data(),
                                                     .grad_outputs_S = grad_outputs,
                                                     .grad_sum_ST = nullptr,
                                                     .grad_weights_SNT = nullptr,
                                                     .grad_sources_N = grads,
                                                     .accumulate_N = no};
    std::vector<Number> grad_query(kWidth);
    depth_attention_backward(backward, 0, kTokens, grad_query.data());
    std::vector<double> all;
    for (int64_t i = 0; i < 3; ++i) {
      std::transform(at(i), at(i) + kNumbers, std::back_inserter(all),
                     [](TypeParam x) { return to_double(x); });
      EXPECT_TRUE(
          std::any_of(at(i), at(i) + kNumbers, [](TypeParam x) { return to_double(x) != 0; }));
    }
    return all;
  };
  testing::on_every_target([&] { EXPECT_TRUE(results(0) == results(1)); });
}

// Halfway cases go to even, and what is not a number stays so.
TEST(DepthAttentionKernelBFloat16, OutputIsRoundedToNearestEven) {
  testing::on_every_target([] {
    // Weights of one half: the output is the mean of neighbours, 1 + 2^-7 k, so always halfway.
    const size_t width = 35;
    std::vector<BFloat16> low(width), high(width), output(width);
    for (size_t k = 0; k < width; ++k) {
      low[k] = {static_cast<uint16_t>(0x3f80 + k)};
      high[k] = {static_cast<uint16_t>(0x3f80 + k + 1)};
    }
    const BFloat16* sources[] = {low.data(), high.data()};
    const std::vector<float> query(width, 0.f);
    float weights[2], scores[2], inverse_rms[2];
    float* const rms_pointers[] = {&inverse_rms[0], &inverse_rms[1]};
    const bool rms_known[] = {false, false};
    BFloat16* const outputs[] = {output.data()};
    const DepthAttentionForward<BFloat16> forward{
        .inputs = {sources, query.data(), 2, 1, 1, static_cast<int64_t>(width)},
        .eps = kEps,
        .complete = true,
        .inverse_rms_N = rms_pointers,
        .rms_known_N = rms_known,
        .outputs_S = outputs,
        .max_ST = nullptr,
        .sum_ST = nullptr,
        .scores_SNT = scores,
        .weights_SNT = weights};
    depth_attention_forward(forward, 0, 1);
    for (size_t k = 0; k < width; ++k) EXPECT_EQ(output[k].bits, 0x3f80 + k + k % 2) << k;

    low[3] = {0x7fc0};
    depth_attention_forward(forward, 0, 1);
    EXPECT_TRUE(std::isnan(to_double(output[3])));
  });
}

// One of all ones would be rounded up to a zero.
TEST(DepthAttentionKernelBFloat16, EveryNaNStaysOne) {
  testing::on_every_target([] {
    const size_t width = 35;
    const std::vector<BFloat16> ones(width, to_storage<BFloat16>(1));
    const std::vector<float> query(width, 1.f);
    const float scores[] = {1}, weights[] = {1}, inverse_rms[] = {1},
                grad_weights[] = {std::bit_cast<float>(0x7fffffff)};
    std::vector<BFloat16> grad(width);
    std::vector<float> grad_query(width);
    const BFloat16* const rows[] = {ones.data()};
    const float* const rms_pointers[] = {inverse_rms};
    BFloat16* const grads[] = {grad.data()};
    const bool accumulate[] = {false};
    const DepthAttentionBackward<BFloat16> backward{
        .inputs = {rows, query.data(), 1, 1, 1, static_cast<int64_t>(width)},
        .inverse_rms_N = rms_pointers,
        .scores_SNT = scores,
        .weights_SNT = weights,
        .grad_outputs_S = rows,
        .grad_sum_ST = nullptr,
        .grad_weights_SNT = grad_weights,
        .grad_sources_N = grads,
        .accumulate_N = accumulate};
    depth_attention_backward(backward, 0, 1, grad_query.data());
    for (size_t k = 0; k < width; ++k) EXPECT_TRUE(std::isnan(to_double(grad[k]))) << k;
  });
}

}  // namespace
}  // namespace attnres::kernel
