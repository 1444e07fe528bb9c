#include "attnres/train/optimizers/muon.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attnres/parallel/tensor_ranks.h"
#include "attnres/support/error.h"
#include "attnres/support/random.h"
#include "tests/larger.h"
#include "tests/parallel/thread_communicator.h"
#include "tests/tolerances.h"

namespace attnres::testing::muon_test {
namespace {

constexpr double kRate = 0.02;
constexpr int kSteps = 6;
constexpr double kDivisor = 3;  // by which the gradients given are too large

at::Tensor random_normal(at::IntArrayRef shape, const std::string& name) {
  at::Tensor x = at::empty(shape, at::kDouble);
  const RandomStream random(1, name);
  for (int64_t i = 0; i < x.numel(); ++i) x.mutable_data_ptr<double>()[i] = random.normal(i);
  return x;
}

// Singular values from 1 down to 10^-decades.
at::Tensor ill_conditioned(int64_t rows, int64_t columns, double decades) {
  const auto [u, s, v] = at::linalg_svd(random_normal({rows, columns}, "ill"), false);
  return u.matmul((at::logspace(0, -decades, s.numel(), 10, at::kDouble) * s[0]).diag()).matmul(v);
}

double quintic(double x, int steps) {
  for (int step = 0; step < steps; ++step) {
    x = 3.4445 * x - 4.7750 * std::pow(x, 3) + 2.0315 * std::pow(x, 5);
  }
  return x;
}

// The same by a singular value decomposition.
at::Tensor by_svd(const at::Tensor& matrix, int steps = 5) {
  const auto [u, s, v] = at::linalg_svd(matrix, false);
  const double norm = std::sqrt(s.square().sum().item<double>()) + 1e-7;
  at::Tensor mapped = at::empty_like(s);
  for (int64_t i = 0; i < s.numel(); ++i) mapped[i] = quintic(s[i].item<double>() / norm, steps);
  return u.matmul(mapped.diag()).matmul(v);
}

std::vector<at::Tensor> matrices() {
  return {random_normal({16, 16}, "square"), random_normal({8, 24}, "wide"),
          random_normal({24, 8}, "tall"),    random_normal({1, 7}, "row"),
          random_normal({7, 1}, "column"),   ill_conditioned(12, 12, 2),
          ill_conditioned(8, 20, 6),         ill_conditioned(20, 8, 6)};
}

TEST(Orthogonalize, MapsSingularValuesAndKeepsSingularVectors) {
  for (const at::Tensor& matrix : matrices()) {
    SCOPED_TRACE(::testing::PrintToString(matrix.sizes().vec()));
    EXPECT_TRUE(close(orthogonalize(matrix), by_svd(matrix)));
    EXPECT_TRUE(close(orthogonalize(matrix.to(at::kFloat)), by_svd(matrix), 1e-4));
    EXPECT_FALSE(close(orthogonalize(matrix), by_svd(matrix, 4), 1e-2));
  }
}

TEST(Orthogonalize, BringsSingularValuesCloseToOne) {
  for (const at::Tensor& matrix : matrices()) {
    const auto [u, s, v] = at::linalg_svd(matrix, false);
    const at::Tensor relative = s / std::sqrt(s.square().sum().item<double>());
    const at::Tensor values = std::get<1>(at::linalg_svd(orthogonalize(matrix), false));
    EXPECT_LT(values.max().item<double>(), 1.21);
    // These come in falling order, so that as many as were large are at least 0.68.
    const int64_t large = relative.ge(0.002).sum().item<int64_t>();
    EXPECT_GT(values[large - 1].item<double>(), 0.68);
  }
}

TEST(Orthogonalize, LeavesZerosAlone) {
  const at::Tensor zeros = at::zeros({3, 4, 5});
  EXPECT_TRUE(at::equal(orthogonalize(zeros), zeros));
}

TEST(Orthogonalize, TakesEachExpertByItself) {
  for (const auto& shape : {std::vector<int64_t>{4, 6, 10}, {4, 10, 6}}) {
    at::Tensor experts = random_normal(shape, "experts");
    experts[1].mul_(100);
    const at::Tensor together = orthogonalize(experts);
    for (int64_t e = 0; e < 4; ++e) EXPECT_TRUE(close(together[e], orthogonalize(experts[e])));
    EXPECT_FALSE(close(together[0], together[1], 1e-2));
  }
}

// A matrix as its formula has it, in float64, one number at a time.
struct Matrix {
  int64_t rows, columns;
  std::vector<double> values = std::vector<double>(rows * columns);

  double& at(int64_t i, int64_t j) { return values[i * columns + j]; }
  double at(int64_t i, int64_t j) const { return values[i * columns + j]; }
};

Matrix transposed(const Matrix& a) {
  Matrix t{a.columns, a.rows};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) t.at(j, i) = a.at(i, j);
  }
  return t;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.columns};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < b.columns; ++j) {
      for (int64_t k = 0; k < a.columns; ++k) c.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return c;
}

// X = a X + b (X X^T) X + c (X X^T)^2 X, whichever side is the longer.
Matrix newton_schulz(Matrix x) {
  double squares = 0;
  for (const double value : x.values) squares += value * value;
  for (double& value : x.values) value /= std::sqrt(squares) + 1e-7;
  for (int step = 0; step < 5; ++step) {
    const Matrix gram = product(x, transposed(x)), third = product(gram, x),
                 fifth = product(gram, third);
    for (size_t i = 0; i < x.values.size(); ++i) {
      x.values[i] = 3.4445 * x.values[i] - 4.7750 * third.values[i] + 2.0315 * fifth.values[i];
    }
  }
  return x;
}

struct Reference {
  double momentum = 0.8, decay = 0.3, scale = 0.2;
  bool nesterov = true;
};

// One matrix in training.
struct Course {
  Matrix w, m{w.rows, w.columns};

  void step(const Matrix& g, const Reference& r) {
    Matrix direction{w.rows, w.columns};
    for (size_t i = 0; i < w.values.size(); ++i) {
      m.values[i] = r.momentum * m.values[i] + g.values[i];
      direction.values[i] = r.nesterov ? g.values[i] + r.momentum * m.values[i] : m.values[i];
    }
    const Matrix o = newton_schulz(direction);
    const double longer = static_cast<double>(std::max(w.rows, w.columns));
    for (size_t i = 0; i < w.values.size(); ++i) {
      w.values[i] -=
          kRate * r.decay * w.values[i] + kRate * r.scale * std::sqrt(longer) * o.values[i];
    }
  }
};

Matrix matrix_of(const at::Tensor& tensor) {
  const at::Tensor x = tensor.detach().to(at::kDouble).contiguous();
  const double* data = x.const_data_ptr<double>();
  return {x.size(0), x.size(1), {data, data + x.numel()}};
}

at::Tensor gradient(const Parameter& p, int step) {
  return random_normal(p.tensor.sizes(), p.role + std::to_string(step)) * (1 + step % 3);
}

// The largest difference from the reference after kSteps.
double largest_difference(at::ScalarType dtype, const Reference& reference) {
  TrainConfig config;
  config.muon_momentum = 0.8;
  config.weight_decay = 0.3;
  ParameterRegistry registry(dtype, 1);
  registry.add(0, "wide", ParameterKind::matrix, {5, 7}, Init::normal(1));
  registry.add(0, "tall", ParameterKind::matrix, {7, 5}, Init::normal(1));
  registry.add(1, "experts", ParameterKind::matrix, {3, 4, 6}, Init::normal(1));
  Muon muon({registry.all().begin(), registry.all().end()}, config);

  const auto each = [](const at::Tensor& tensor) {
    return tensor.dim() == 2 ? std::vector<at::Tensor>{tensor} : tensor.unbind(0);
  };
  std::vector<Course> courses;
  for (const Parameter& p : registry.all()) {
    for (const at::Tensor& w : each(p.tensor.detach())) courses.push_back({matrix_of(w)});
  }
  for (int step = 0; step < kSteps; ++step) {
    size_t next = 0;
    for (const Parameter& p : registry.all()) {
      const at::Tensor g = gradient(p, step).to(dtype);
      p.tensor.mutable_grad() = kDivisor * g;
      for (const at::Tensor& one : each(g)) courses[next++].step(matrix_of(one), reference);
    }
    muon.step(kRate, kDivisor);
  }
  double largest = 0;
  size_t next = 0;
  for (const Parameter& p : registry.all()) {
    for (const at::Tensor& w : each(p.tensor.detach())) {
      const Matrix actual = matrix_of(w), &expected = courses[next++].w;
      for (size_t i = 0; i < actual.values.size(); ++i) {
        largest = testing::larger(largest, std::abs(actual.values[i] - expected.values[i]));
      }
    }
  }
  return largest;
}

TEST(Muon, FollowsTheFormula) {
  EXPECT_LT(largest_difference(at::kDouble, {}), 1e-12);
  EXPECT_LT(largest_difference(at::kFloat, {}), 1e-5);
}

TEST(Muon, TheReferenceSeesAWrongFormula) {
  EXPECT_GT(largest_difference(at::kDouble, {.nesterov = false}), 1e-3);
  EXPECT_GT(largest_difference(at::kDouble, {.momentum = 0.7}), 1e-3);
  EXPECT_GT(largest_difference(at::kDouble, {.decay = 0}), 1e-3);
  EXPECT_GT(largest_difference(at::kDouble, {.scale = 0.1}), 1e-3);
}

TEST(Muon, SkipsWhatHasNoGradient) {
  ParameterRegistry registry(at::kFloat, 1);
  const at::Tensor w = registry.add(0, "w", ParameterKind::matrix, {2, 3}, Init::normal(1));
  const at::Tensor before = w.detach().clone();
  Muon({registry.all().begin(), registry.all().end()}, {}).step(kRate, 1);
  EXPECT_TRUE(at::equal(w, before));
}

TEST(Muon, RefusesWhatIsNoMatrix) {
  ParameterRegistry registry(at::kFloat, 1);
  registry.add(0, "gain", ParameterKind::norm_gain, {3}, Init::ones());
  EXPECT_THROW(Muon({registry.all().begin(), registry.all().end()}, {}), Error);
}

// Two processes share the rows or columns of a matrix, and the columns of a stack.
TEST(Muon, OfPartsIsThatOfTheWhole) {
  const std::vector<std::pair<std::vector<int64_t>, Shard>> kinds = {
      {{6, 5}, Shard::outputs}, {{5, 6}, Shard::inputs}, {{3, 5, 4}, Shard::inputs}};
  for (const auto& [sizes, shard] : kinds) {
    Parameter whole = {.role = "w", .tensor = random_normal(sizes, "w"), .shard = shard};
    const at::Tensor gradient = random_normal(sizes, "gradient");
    const auto step = [&](Parameter& parameter, const at::Tensor& of, const TensorGroup* group) {
      parameter.tensor.mutable_grad() = of;
      Muon({parameter}, TrainConfig(), group).step(kRate, kDivisor);
      return parameter.tensor;
    };
    const at::Tensor before = whole.tensor.clone();
    const at::Tensor expected = step(whole, gradient, nullptr);
    run_on_threads(2, [&, &shard = shard](Communicator& ranks) {
      const TensorRanks group(ranks);
      Parameter part = {.role = "w", .tensor = before, .shard = shard};
      const auto cut = [&](const at::Tensor& x) {
        return part_of_parameter(group.part(), {.role = "w", .tensor = before, .shard = shard}, x)
            .clone();
      };
      part.tensor = cut(before);
      EXPECT_TRUE(close(step(part, cut(gradient), &group), cut(expected)));
      // Negative control: each by itself.
      part.tensor = cut(before);
      EXPECT_FALSE(close(step(part, cut(gradient), nullptr), cut(expected), 1e-4));
    });
  }
}

}  // namespace
}  // namespace attnres::testing::muon_test
