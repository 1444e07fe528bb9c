// What the CUDA kernels of RMSNorm, SwiGLU, rotary embedding and cross-entropy have to give, with
// any Launcher whose memory the host can read: the formulas' numbers.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "attnres/ops/linear_cross_entropy/cuda_cross_entropy.h"
#include "attnres/ops/rms_norm/cuda_rms_norm.h"
#include "attnres/ops/rms_norm/reference.h"
#include "attnres/ops/rotary/cuda_rotary.h"
#include "attnres/ops/rotary/reference.h"
#include "attnres/ops/swiglu/cuda_swiglu.h"
#include "attnres/ops/swiglu/reference.h"
#include "tests/cuda_kernels/host_rows.h"

namespace attnres::gpu {

// Of one rounding of the storage's type.
template <class Storage>
constexpr double kMost = sizeof(Storage) == 4 ? 2e-6 : 5e-3;

inline std::vector<double> doubles(const auto& rows, int64_t first, int64_t count) {
  std::vector<double> numbers;
  for (int64_t i = first; i < first + count; ++i) numbers.push_back(number(rows[i]));
  return numbers;
}

inline void append(std::vector<double>& to, const std::vector<double>& row) {
  to.insert(to.end(), row.begin(), row.end());
}

template <class Storage, class Launcher>
void expect_rms_norm(int64_t T, int64_t D, bool added, const Launcher& launcher) {
  SCOPED_TRACE(::testing::Message() << T << " tokens of " << D);
  constexpr double kEps = 0.1;
  HostNumbers draw(3);
  const auto state = draw.rows<Storage>(T * D), pending = draw.rows<Storage>(T * D),
             dy = draw.rows<Storage>(T * D), later = draw.rows<Storage>(T * D);
  const auto gain = draw.rows<float>(D, 1, 0.5);
  std::vector<Storage> h(T * D), y(T * D), dh(T * D);
  std::vector<float> rho(T), dgain(D), memory(runs_of_tokens(T, D) * D);
  ASSERT_TRUE(rms_norm_forward<Storage>({D, state.data(), added ? pending.data() : nullptr,
                                         h.data(), gain.data(), kEps, y.data(), rho.data()},
                                        T, launcher));
  if (!added) h = state;
  ASSERT_TRUE(rms_norm_backward<Storage>(
      {D, h.data(), rho.data(), gain.data(), dy.data(), added ? later.data() : nullptr, dh.data()},
      T, memory.data(), dgain.data(), launcher));
  std::vector<double> h_expected, y_expected, dh_expected, dgain_expected(D);
  const auto gain_D = doubles(gain, 0, D);
  for (int64_t t = 0; t < T; ++t) {
    auto sum = doubles(state, t * D, D);
    for (int64_t c = 0; c < D && added; ++c) sum[c] += number(pending[t * D + c]);
    append(h_expected, sum);
    const auto h_D = doubles(h, t * D, D);
    append(y_expected, reference::rms_norm(h_D, gain_D, kEps));
    auto grad = reference::rms_norm_backward(h_D, gain_D, kEps, doubles(dy, t * D, D));
    for (int64_t c = 0; c < D; ++c) {
      if (added) grad.h_D[c] += number(later[t * D + c]);
      dgain_expected[c] += grad.gain_D[c];
    }
    append(dh_expected, grad.h_D);
  }
  EXPECT_LT(relative_error(h, h_expected), kMost<Storage>);
  EXPECT_LT(relative_error(y, y_expected), kMost<Storage>);
  EXPECT_LT(relative_error(dh, dh_expected), kMost<Storage>);
  EXPECT_LT(relative_error(dgain, dgain_expected), 2e-6);
  std::swap_ranges(y_expected.begin(), y_expected.begin() + D / 2, y_expected.begin() + D / 2);
  EXPECT_GT(relative_error(y, y_expected), 0.1);
}

template <class Storage, class Launcher>
void expect_swiglu(int64_t count, const Launcher& launcher) {
  HostNumbers draw(4);
  auto gate = draw.rows<Storage>(count, 0, 4);
  const auto up = draw.rows<Storage>(count), dy = draw.rows<Storage>(count);
  set(gate[0], 200);
  set(gate[1], -200);
  std::vector<Storage> y(count), dgate(count), dup(count);
  ASSERT_TRUE(
      swiglu(kernel::SwigluForward<Storage>{gate.data(), up.data(), y.data()}, count, launcher));
  ASSERT_TRUE(swiglu(
      kernel::SwigluBackward<Storage>{gate.data(), up.data(), dy.data(), dgate.data(), dup.data()},
      count, launcher));
  std::vector<double> y_expected, dgate_expected, dup_expected;
  for (int64_t i = 0; i < count; ++i) {
    const double g = number(gate[i]), u = number(up[i]);
    y_expected.push_back(reference::swiglu(g, u));
    const auto grad = reference::swiglu_backward(g, u, number(dy[i]));
    dgate_expected.push_back(grad.gate);
    dup_expected.push_back(grad.up);
  }
  EXPECT_LT(relative_error(y, y_expected), kMost<Storage>);
  EXPECT_LT(relative_error(dgate, dgate_expected), kMost<Storage>);
  EXPECT_LT(relative_error(dup, dup_expected), kMost<Storage>);
  EXPECT_GT(relative_error(dup, dgate_expected), 0.1);
}

template <class Storage, class Launcher>
void expect_rotary(int64_t T, int64_t heads, int64_t half, const Launcher& launcher) {
  constexpr int64_t kSequences = 2;
  HostNumbers draw(5);
  const int64_t rows = kSequences * T, width = 2 * half;
  const auto x = draw.rows<Storage>(rows * heads * width);
  std::vector<float> cosine, sine;
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t k = 0; k < half; ++k) {
      const double angle = static_cast<double>(t) * std::pow(100.0, -2.0 * k / width);
      cosine.push_back(static_cast<float>(std::cos(angle)));
      sine.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  std::vector<Storage> y(x.size());
  ASSERT_TRUE(rotary<Storage>({T, heads, half, cosine.data(), sine.data(), x.data(), y.data()},
                              rows, launcher));
  std::vector<double> expected, turned_back;
  for (int64_t head = 0; head < rows * heads; ++head) {
    const auto position = static_cast<double>(head / heads % T);
    append(expected, reference::rotary(doubles(x, head * width, width), position, 100));
    append(turned_back, reference::rotary(doubles(x, head * width, width), -position, 100));
  }
  EXPECT_LT(relative_error(y, expected), kMost<Storage>);
  EXPECT_GT(relative_error(y, turned_back), 0.1);
}

// Logits of one row are far apart, another's are all large, and the last row does not count.
template <class Storage, class Launcher>
void expect_cross_entropy(int64_t rows, int64_t vocabulary, const Launcher& launcher) {
  SCOPED_TRACE(::testing::Message() << rows << " rows of " << vocabulary);
  constexpr float kScale = 0.25f;
  HostNumbers draw(6);
  auto logits = draw.rows<float>(rows * vocabulary, 0, 4);
  std::vector<int64_t> targets(rows);
  for (int64_t r = 0; r < rows; ++r) targets[r] = (r * 7919 + 3) % vocabulary;
  logits[1] = 200;
  for (int64_t v = 0; v < vocabulary; ++v) logits[vocabulary + v] += 300;
  targets[rows - 1] = -100;
  std::vector<float> nll(rows), nll_alone(rows);
  std::vector<Storage> grad(rows * vocabulary);
  CrossEntropyRows<Storage> op{rows,   vocabulary, logits.data(), targets.data(),
                               kScale, nll.data(), grad.data()};
  ASSERT_TRUE(cross_entropy(op, launcher));
  op.nll_C = nll_alone.data(), op.grad_CV = nullptr;
  ASSERT_TRUE(cross_entropy(op, launcher));
  EXPECT_EQ(nll, nll_alone);
  std::vector<double> nll_expected, grad_expected;
  for (int64_t r = 0; r < rows; ++r) {
    const auto x = doubles(logits, r * vocabulary, vocabulary);
    double sum = 0;
    for (const double logit : x) sum += std::exp(logit - 300);
    const int64_t target = targets[r];
    nll_expected.push_back(target < 0 ? 0 : std::log(sum) + 300 - x[target]);
    for (int64_t v = 0; v < vocabulary; ++v) {
      const double softmax = std::exp(x[v] - 300) / sum;
      grad_expected.push_back(target < 0 ? 0 : kScale * (softmax - (v == target ? 1 : 0)));
    }
  }
  EXPECT_LT(relative_error(nll, nll_expected), 2e-6);
  EXPECT_LT(relative_error(grad, grad_expected), kMost<Storage>);
  if constexpr (sizeof(Storage) == 4) {
    std::vector<float> in_place = logits;
    op.logits_CV = in_place.data(), op.grad_CV = in_place.data();
    ASSERT_TRUE(cross_entropy(op, launcher));
    EXPECT_EQ(in_place, grad);
    EXPECT_EQ(nll, nll_alone);
  }
  grad_expected[targets[0]] += kScale;
  EXPECT_GT(relative_error(grad, grad_expected), 0.1);
}

template <class Launcher>
void expect_cross_entropies(const Launcher& launcher) {
  for (const auto& [rows, vocabulary] : {std::pair<int64_t, int64_t>{3, 8}, {5, 256}, {4, 4104}}) {
    expect_cross_entropy<float>(rows, vocabulary, launcher);
    expect_cross_entropy<BFloat16>(rows, vocabulary, launcher);
  }
}

template <class Launcher>
void expect_rms_norms(const Launcher& launcher) {
  for (const bool added : {false, true}) {
    for (const auto& [tokens, width] :
         {std::pair<int64_t, int64_t>{5, 8}, {7, 64}, {1030, 24}, {3, 1032}, {2, 8192}}) {
      expect_rms_norm<float>(tokens, width, added, launcher);
      expect_rms_norm<BFloat16>(tokens, width, added, launcher);
    }
  }
}

template <class Launcher>
void expect_swiglus(const Launcher& launcher) {
  for (const int64_t count : {8, 1000, 20000}) {
    expect_swiglu<float>(count, launcher);
    expect_swiglu<BFloat16>(count, launcher);
  }
}

template <class Launcher>
void expect_rotaries(const Launcher& launcher) {
  for (const int64_t half : {8, 32, 64}) {
    expect_rotary<float>(5, 3, half, launcher);
    expect_rotary<BFloat16>(5, 3, half, launcher);
  }
}

}  // namespace attnres::gpu
