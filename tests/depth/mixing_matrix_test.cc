#include "attnres/depth/mixing_matrix.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/depth/mixer_bench.h"

namespace attnres::mixing_matrix_test {
namespace {

using namespace testing;

constexpr int kSublayers = 8;
const MixerShape kShape = {.width = 16, .sublayers = kSublayers, .heads = 4, .kv_heads = 2};

Json type(const std::string& name) {
  return {{"type", name}};
}
Json block(int64_t size) {
  return {{"type", "block_attn_res"}, {"block_size", size}};
}

std::vector<MixingMatrix> matrices_of(const Json& depth_mixing, double perturbation = 0.3) {
  Bench bench(depth_mixing, kShape);
  bench.perturb(perturbation);
  return mixing_matrices(*bench.mixer, kSublayers, kShape.width, /*tokens=*/5);
}

at::Tensor random_rows(int64_t number) {
  return vector_tensor(random_vector("rows", number, 3 * kShape.width)).view({3, kShape.width});
}

// sum_i <dh_l/dv_i^T z, v_i> and <z, h_l> at every site: equal if h_l is linear in its sources.
struct Products {
  Vector of_derivatives, of_reads;
};

Products products(const Json& depth_mixing, bool hold_weights) {
  Bench bench(depth_mixing, kShape);
  bench.perturb(0.3);
  std::vector<at::Tensor> sources;
  const auto leaf = [&] {
    const auto number = static_cast<int64_t>(sources.size());
    sources.push_back(random_rows(number).set_requires_grad(true));
    return sources.back();
  };
  Products result;
  DepthState state = bench.mixer->start(leaf());
  MixingAnalysis analysis = {.hold_weights = hold_weights};
  state.analysis = &analysis;
  for (int site = 0;; ++site) {
    const at::Tensor x = bench.mixer->read(state).x;
    const ReadTrace& trace = analysis.read;
    std::vector<at::Tensor> reads = {hold_weights ? trace.mixed : x};
    if (hold_weights) {
      for (const auto& [name, mixed] : trace.other_streams) reads.push_back(mixed);
    }
    for (const at::Tensor& read : reads) {
      const at::Tensor z = random_rows(100 + site);
      const auto gradients = torch::autograd::grad({read}, sources, {z}, /*retain_graph=*/true,
                                                   /*create_graph=*/false, /*allow_unused=*/true);
      double sum = 0;
      for (size_t i = 0; i < sources.size(); ++i) {
        if (gradients[i].defined()) sum += (gradients[i] * sources[i]).sum().item<double>();
      }
      result.of_derivatives.push_back(sum);
      result.of_reads.push_back((z * read).sum().item<double>());
    }
    if (site == kSublayers) return result;
    bench.mixer->write(state, {leaf()});
  }
}

class HeldWeights : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Mechanisms, HeldWeights, ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const Mechanism& m : mechanisms()) names.push_back(m.text.name);
                           return names;
                         }()),
                         [](const auto& info) { return info.param; });

TEST_P(HeldWeights, MakeEveryReadLinearInItsSources) {
  const Products held = products(type(GetParam()), /*hold_weights=*/true);
  for (size_t i = 0; i < held.of_reads.size(); ++i) {
    EXPECT_NEAR(held.of_derivatives[i], held.of_reads[i], 1e-9 * (1 + std::abs(held.of_reads[i])))
        << "read " << i;
  }
  // Negative control: normalised inputs with nothing held are not linear.
  const Products free = products(type(GetParam()), /*hold_weights=*/false);
  const bool reads_what_is_not_normed = GetParam() == "rezero";
  EXPECT_EQ(std::abs(free.of_derivatives.back() - free.of_reads.back()) < 1e-3,
            reads_what_is_not_normed);
}

TEST(MixingMatrix, OfResidualConnectionsIsAllOnes) {
  const MixingMatrix matrix = matrices_of(type("residual"))[0];
  for (int l = 0; l <= kSublayers; ++l) {
    for (int i = 0; i <= kSublayers; ++i) {
      if (i <= l) {
        EXPECT_NEAR(matrix.mean[l][i], 1, 1e-12);
      } else {
        EXPECT_TRUE(std::isnan(matrix.mean[l][i]));
      }
    }
  }
  EXPECT_EQ(semiseparable_rank(matrix.mean), 1);
}

// Its entries are depth weights, shared by the outputs of a block.
TEST(MixingMatrix, OfAttentionResidualsHoldsTheirDepthWeights) {
  for (const int64_t block_size : {1, 3}) {
    Bench bench(block(block_size), kShape);
    bench.perturb(0.3);
    const MixingMatrix matrix = mixing_matrices(*bench.mixer, kSublayers, kShape.width, 1)[0];
    // The same outputs again, and what the mixer says that it weighs.
    const auto outputs = [&](int64_t number) {
      const RandomStream random(number, "mixing_matrix.outputs");
      Vector row(kShape.width);
      for (int64_t c = 0; c < kShape.width; ++c) row[c] = random.normal(c);
      return vector_tensor(row).view({1, kShape.width});
    };
    DepthState state = bench.mixer->start(outputs(0));
    MixingAnalysis analysis;
    state.analysis = &analysis;
    for (int l = 0; l <= kSublayers; ++l) {
      bench.mixer->read(state);
      const ReadTrace& trace = analysis.read;
      for (int i = 0; i <= l; ++i) {
        const int64_t source = i == 0 ? 0 : 1 + (i - 1) / block_size;
        EXPECT_NEAR(matrix.mean[l][i], trace.weights[source].item<double>(), 1e-9)
            << "site " << l << ", source " << i;
      }
      if (l < kSublayers) bench.mixer->write(state, {outputs(l + 1)});
    }
  }
}

// Section 6.2 of the report: residual 1, highway 1, m streams m, Block between N and N + S, Full
// all.
TEST(MixingMatrix, HasTheRanksThatTheReportNames) {
  const auto rank = [](const MixingMatrix& matrix) {
    return semiseparable_rank(matrix.samples[0]);
  };
  EXPECT_EQ(rank(matrices_of(type("highway"))[0]), 1);
  EXPECT_EQ(rank(matrices_of(type("layer_scale"))[0]), 1);
  for (const int streams : {2, 3}) {
    const Json hyper = {{"type", "hyper_connections"}, {"streams", streams}};
    EXPECT_EQ(rank(matrices_of(hyper)[0]), streams);
  }
  EXPECT_EQ(rank(matrices_of(type("attn_res"))[0]), 5);
  const int blocks = rank(matrices_of(block(4))[0]);
  EXPECT_GE(blocks, 2);
  EXPECT_LE(blocks, 2 + 4);
}

TEST(SemiseparableRank, OfKnownMatrices) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(semiseparable_rank({{1, none, none}, {2, 5, none}, {4, 10, 7}}), 1);
  EXPECT_EQ(semiseparable_rank({{1, none, none}, {2, 5, none}, {4, 9, 7}}), 2);
  // A row without numbers does not count.
  EXPECT_EQ(semiseparable_rank({{1, none, none}, {none, none, none}, {4, 9, 7}}), 1);
}

}  // namespace
}  // namespace attnres::mixing_matrix_test
