#include "attnres/parallel/gradient_sums.h"

#include <gtest/gtest.h>

#include <mutex>

#include "attnres/parallel/thread_communicator.h"
#include "tests/model/stages.h"

namespace attnres::testing::gradient_sums_test {
namespace {

const std::vector<SiteSet> kSites = {SiteSet(std::vector<SiteRange>{{0, 2}, {4, 5}}),
                                     SiteSet(std::vector<SiteRange>{{2, 4}, {5, 7}})};

Transformer model_at(int rank) {
  ModelConfig config = small_config(residual());
  config.tie_embeddings = true;
  return {config, kSmallVocabulary, /*seed=*/1, at::kDouble, at::kCPU, kSites[rank]};
}

// A part of a gradient, another one on each rank.
at::Tensor part_of(const Parameter& parameter, int rank) {
  return at::cos(parameter.tensor.detach() * (rank + 1.5)) * (rank + 1);
}

// Three replicas of two ranks each, rank r of all being rank r mod 2 of replica r / 2.
struct World {
  explicit World(Communicator& all)
      : pipeline(all.split(all.rank() / 2)), replicas(all.split(all.rank() % 2)) {}

  std::unique_ptr<Communicator> pipeline, replicas;
};

TEST(GradientSums, AreOfAllWhoHoldAParameter) {
  for (const int64_t bucket_bytes : {1, 1000, 1 << 20}) {
    run_on_threads(6, [&](Communicator& all) {
      const World world(all);
      const Transformer model = model_at(world.pipeline->rank());
      for (const Parameter& p : model.parameters().all()) {
        p.tensor.mutable_grad() = part_of(p, all.rank());
      }
      GradientSums(model, kSites, *world.pipeline, *world.replicas, /*tensor=*/nullptr,
                   bucket_bytes)
          .add_up();
      for (const Parameter& p : model.parameters().all()) {
        at::Tensor expected = at::zeros_like(p.tensor);
        for (const size_t holder : stages_with(p, kSites)) {
          for (int replica = 0; replica < 3; ++replica) {
            expected = expected + part_of(p, replica * 2 + static_cast<int>(holder));
          }
        }
        EXPECT_TRUE(at::allclose(p.tensor.grad(), expected, 1e-12, 1e-12))
            << p.role << " of site " << p.site << ", rank " << all.rank();
      }
    });
  }
}

// Who alone has a gradient gives it to the others; where nobody has one it stays undefined.
TEST(GradientSums, KnowWhoHasNone) {
  run_on_threads(6, [](Communicator& all) {
    const World world(all);
    const Transformer model = model_at(world.pipeline->rank());
    GradientSums sums(model, kSites, *world.pipeline, *world.replicas);
    const Parameter& first = model.parameters().all().front();
    if (all.rank() == 1) first.tensor.mutable_grad() = part_of(first, 1);
    sums.add_up();
    for (const Parameter& p : model.parameters().all()) {
      const bool is_embedding = p.role == "token_embedding";
      EXPECT_EQ(p.tensor.grad().defined(), is_embedding) << p.role << " of site " << p.site;
      if (is_embedding) {
        EXPECT_TRUE(p.tensor.grad().equal(part_of(p, 1)));
      }
    }
  });
}

TEST(GradientSums, CountEveryParameterOnce) {
  std::mutex one_at_a_time;
  int64_t counted = 0, held = 0;
  run_on_threads(2, [&](Communicator& pipeline) {
    const auto alone = pipeline.split(pipeline.rank());
    const Transformer model = model_at(pipeline.rank());
    const GradientSums sums(model, kSites, pipeline, *alone);
    const std::lock_guard lock(one_at_a_time);
    for (const Parameter& p : model.parameters().all()) {
      held += p.tensor.numel();
      if (sums.counts(p)) counted += p.tensor.numel();
    }
  });
  const ModelConfig config = model_at(0).config();
  const Transformer shapes(config, kSmallVocabulary, /*seed=*/std::nullopt, at::kDouble, at::kMeta);
  EXPECT_EQ(counted, shapes.parameters().count());
  EXPECT_EQ(held - counted, kSmallVocabulary * config.width);
}

}  // namespace
}  // namespace attnres::testing::gradient_sums_test
