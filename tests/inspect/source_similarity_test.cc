#include "attnres/inspect/source_similarity.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "attnres/support/error.h"
#include "tests/model/kinds_of_models.h"

namespace attnres::testing::source_similarity_test {
namespace {

using Vectors = std::vector<std::vector<double>>;  // [tokens][channels]

Vectors vectors_of(const at::Tensor& v_TD) {
  Vectors rows;
  for (int64_t t = 0; t < v_TD.size(0); ++t) {
    const at::Tensor row = v_TD[t].detach().to(at::kDouble).contiguous();
    rows.emplace_back(row.const_data_ptr<double>(), row.const_data_ptr<double>() + row.numel());
  }
  return rows;
}

double mean_cosine(const Vectors& a, const Vectors& b) {
  double sum = 0;
  for (size_t t = 0; t < a.size(); ++t) {
    double dot = 0, aa = 0, bb = 0;
    for (size_t d = 0; d < a[t].size(); ++d) {
      dot += a[t][d] * b[t][d];
      aa += a[t][d] * a[t][d];
      bb += b[t][d] * b[t][d];
    }
    sum += dot / std::sqrt(aa * bb);
  }
  return sum / static_cast<double>(a.size());
}

class Outputs : public RunObserver {
 public:
  void on_output(int, const at::Tensor& y, const at::Tensor&) override { outputs.push_back(y); }

  std::vector<at::Tensor> outputs;
};

// The embedding and sums of `block_size` outputs each.
std::vector<Vectors> sources_by_hand(const Transformer& model, const at::Tensor& ids,
                                     size_t block_size) {
  const at::NoGradGuard no_grad;
  Outputs seen;
  model.hidden(ids, {.observer = &seen});
  std::vector<Vectors> sources = {vectors_of(model.token_embeddings(ids.flatten()))};
  for (size_t begin = 0; begin < seen.outputs.size(); begin += block_size) {
    at::Tensor sum = seen.outputs[begin];
    const size_t end = std::min(begin + block_size, seen.outputs.size());
    for (size_t i = begin + 1; i < end; ++i) sum = sum + seen.outputs[i];
    sources.push_back(vectors_of(sum));
  }
  return sources;
}

TEST(SourceSimilarity, IsTheMeanCosineOfTheSourcesVectors) {
  const at::Tensor ids = random_ids(2, 5);
  const std::vector<std::pair<Json, size_t>> mixings = {
      {attn_res(), 1}, {block_attn_res(2), 2}, {block_attn_res(4), 4}, {residual(), 1}};
  for (const auto& [mixing, block_size] : mixings) {
    const Transformer model = small_model(mixing);
    SourceSimilarityAverage average(model);
    average.add(ids.narrow(0, 0, 1));
    average.add(ids.narrow(0, 1, 1));
    const SourceSimilarity similarity = average.similarity();
    const auto sources = sources_by_hand(model, ids, block_size);
    ASSERT_EQ(similarity.cosine.size(), sources.size()) << mixing;
    for (size_t i = 0; i < sources.size(); ++i) {
      EXPECT_NEAR(similarity.cosine[i][i], 1, 1e-12);
      for (size_t j = 0; j < sources.size(); ++j) {
        EXPECT_NEAR(similarity.cosine[i][j], mean_cosine(sources[i], sources[j]), 1e-10);
      }
    }
    // Negative control: the sources differ.
    EXPECT_LT(std::abs(similarity.cosine[0][1]), 0.99);
  }
}

TEST(SourceSimilarity, NamesTheSources) {
  const auto names = [](const Json& mixing) {
    const Transformer model = small_model(mixing);
    SourceSimilarityAverage average(model);
    average.add(random_ids(1, 3));
    return average.similarity().sources;
  };
  EXPECT_EQ(names(block_attn_res(4)),
            (std::vector<std::string>{"embedding", "block 1", "partial sum"}));
  EXPECT_EQ(names(block_attn_res(2)),
            (std::vector<std::string>{"embedding", "block 1", "block 2", "block 3"}));
  EXPECT_EQ(names(residual()).back(), "sublayer 6");
  EXPECT_EQ(names(attn_res()), names(residual()));
}

TEST(SourceSimilarity, IsZeroWithAVectorOfZeros) {
  const Transformer model = small_model(residual());
  model.parameters().find(0, "o_proj")->tensor.detach().zero_();
  SourceSimilarityAverage average(model);
  average.add(random_ids(1, 4));
  const SourceSimilarity similarity = average.similarity();
  EXPECT_EQ(similarity.cosine[1][0], 0);
  EXPECT_NE(similarity.cosine[2][0], 0);
}

TEST(SourceSimilarity, NeedsTokens) {
  const Transformer model = small_model(residual());
  EXPECT_THROW(SourceSimilarityAverage(model).similarity(), Error);
}

class EverySourceSimilarity : public ::testing::TestWithParam<KindOfModel> {};
INSTANTIATE_TEST_SUITE_P(Kinds, EverySourceSimilarity, ::testing::ValuesIn(every_kind_of_model()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EverySourceSimilarity, IsACosine) {
  const Transformer model = GetParam().make();
  SourceSimilarityAverage average(model);
  average.add(random_ids(1, 4));
  const SourceSimilarity similarity = average.similarity();
  ASSERT_EQ(similarity.cosine.size(), similarity.sources.size());
  for (size_t i = 0; i < similarity.sources.size(); ++i) {
    for (size_t j = 0; j < similarity.sources.size(); ++j) {
      EXPECT_LE(std::abs(similarity.cosine[i][j]), 1 + 1e-9);
      EXPECT_NEAR(similarity.cosine[i][j], similarity.cosine[j][i], 1e-12);
    }
  }
}

}  // namespace
}  // namespace attnres::testing::source_similarity_test
