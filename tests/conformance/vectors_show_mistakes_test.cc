// Mistakes in other mechanisms than Attention Residuals show in the test vectors.
#include <ATen/ATen.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "attnres/depth/mechanisms/constrained_streams.h"
#include "tests/conformance/vector_entries.h"

namespace attnres::testing {
namespace {

using MapOfStreams = std::function<at::Tensor(const at::Tensor& A_TMM)>;

MixMatrix doubly_stochastic_by_rounds(int64_t m, int rounds) {
  MixMatrix matrix;
  for (int64_t i = 0; i < m * m; ++i) matrix.start.push_back(i / m == i % m ? 0 : -8);
  matrix.of = [=](const at::Tensor& logits_TR) {
    at::Tensor A_TMM = logits_TR.exp().unflatten(-1, {m, m});
    for (int round = 0; round < rounds; ++round) {
      A_TMM = A_TMM / A_TMM.sum(-2, /*keepdim=*/true);
      A_TMM = A_TMM / A_TMM.sum(-1, /*keepdim=*/true);
    }
    return A_TMM;
  };
  return matrix;
}

MixMatrix mixture_of_permutations(int64_t m) {
  std::vector<int64_t> to(m);
  std::iota(to.begin(), to.end(), 0);
  std::vector<at::Tensor> permutations;
  do {
    permutations.push_back(at::eye(m, at::kDouble).index_select(0, at::tensor(to)));
  } while (std::next_permutation(to.begin(), to.end()));
  MixMatrix matrix;
  matrix.start.assign(permutations.size(), -8);
  matrix.start[0] = 0;
  matrix.keeps_sum = true;
  matrix.of = [all_RMM = at::stack(permutations)](const at::Tensor& logits_TR) {
    const at::Tensor weights_TR = logits_TR.softmax(-1);
    return at::einsum("tr,rij->tij", {weights_TR, all_RMM.to(weights_TR.scalar_type())});
  };
  return matrix;
}

// mhc or mhc_lite, with A changed.
MixerFactory with_map(const MapOfStreams& changed, int rounds = 20) {
  return [=](const DepthMixing& mixing, const MixerShape& shape, ParameterRegistry& parameters) {
    const auto m = mixing.to_json().at("streams").get<int64_t>();
    MixMatrix matrix = mixing.name() == "mhc" ? doubly_stochastic_by_rounds(m, rounds)
                                              : mixture_of_permutations(m);
    matrix.of = [changed, of = matrix.of](const at::Tensor& logits) { return changed(of(logits)); };
    return std::make_unique<ConstrainedStreams>(m, matrix, shape, parameters);
  };
}

at::Tensor as_it_is(const at::Tensor& A_TMM) {
  return A_TMM;
}
at::Tensor identity_for(const at::Tensor& A_TMM) {
  return at::eye(A_TMM.size(-1), A_TMM.options()).expand_as(A_TMM);
}
at::Tensor transposed(const at::Tensor& A_TMM) {
  return A_TMM.transpose(-1, -2);
}

bool forward_matches(const std::string& entry, at::ScalarType dtype, const MixerFactory& make) {
  const TestVectors vectors = make_test_vectors(entry_named(entry), dtype, make);
  return diagnose_results(results_of(entry_named(entry), vectors, is_forward)).at(0).matches();
}

TEST(TestVectorsShow, HowStreamsMixEvenInBFloat16) {
  for (const char* entry : {"mhc", "mhc_lite", "mhc.streams=3", "mhc_lite.streams=3"}) {
    EXPECT_TRUE(forward_matches(entry, at::kDouble, with_map(as_it_is))) << entry;
    EXPECT_TRUE(forward_matches(entry, at::kBFloat16, with_map(as_it_is))) << entry;
    EXPECT_FALSE(forward_matches(entry, at::kBFloat16, with_map(identity_for))) << entry;
    EXPECT_FALSE(forward_matches(entry, at::kBFloat16, with_map(transposed))) << entry;
  }
}

TEST(TestVectorsShow, ARoundOfSinkhornMoreOrLess) {
  for (const int rounds : {19, 20, 21}) {
    EXPECT_EQ(forward_matches("mhc", at::kDouble, with_map(as_it_is, rounds)), rounds == 20)
        << rounds;
  }
}

// The streams' sum after the last sublayer sees a matrix whose columns do not quite sum to one.
TEST(TestVectorsShow, TheLastMapOfMhc) {
  const TestVectorEntry& entry = entry_named("mhc");
  const TestVectors vectors = make_test_vectors(entry);
  const int64_t m = 4, last = entry.shape.sublayers - 1;
  const at::Tensor biases = vectors.find(fmt::format("parameter.static_maps.{}", last));
  ASSERT_EQ(biases.size(0), 2 * m + m * m);
  const at::Tensor gradient = vectors.find(fmt::format("gradient.parameter.static_maps.{}", last));
  EXPECT_GT(gradient.narrow(0, 2 * m, m * m).abs().max().item<double>(), 1e-9);
}

TEST(TestVectorsShow, ThatGammaIsNotOne) {
  const TestVectorEntry& entry = entry_named("scalar_mix");
  const TestVectors vectors = make_test_vectors(entry);
  const at::Tensor right = vectors.find("input.8").detach(),
                   gamma = vectors.find("parameter.gamma.8").detach();
  const auto matches = [&](const at::Tensor& input) {
    return diagnose_results({{"scalar_mix/input.8", input.to(at::kBFloat16)}}).at(0).matches();
  };
  EXPECT_TRUE(matches(right));
  EXPECT_FALSE(matches(right / gamma));
}

}  // namespace
}  // namespace attnres::testing
