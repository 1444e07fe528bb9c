#include "attnres/parallel/gradient_sums.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "attnres/parallel/pipeline.h"
#include "attnres/parallel/update_owners.h"
#include "attnres/support/error.h"
#include "tests/model/named_configs.h"
#include "tests/parallel/thread_communicator.h"
#include "tests/text/test_files.h"

namespace attnres::testing::gradient_sums_test {
namespace {

const std::vector<SiteSet> kSites = {SiteSet(std::vector<SiteRange>{{0, 2}, {4, 5}}),
                                     SiteSet(std::vector<SiteRange>{{2, 4}, {5, 7}})};

Transformer model_at(int rank) {
  ModelConfig config = small_config(residual());
  config.tie_embeddings = true;
  return {config, kSmallVocabulary, /*seed=*/1, at::kDouble, at::kCPU, kSites[rank]};
}

const Transformer& whole_model() {
  static const Transformer whole(model_at(0).config(), kSmallVocabulary, /*seed=*/std::nullopt,
                                 at::kDouble, at::kMeta);
  return whole;
}

// A part of a gradient, another one on each rank.
at::Tensor part_of(const Parameter& parameter, int rank) {
  return at::cos(parameter.tensor.detach() * (rank + 1.5)) * (rank + 1);
}

// Three replicas of two ranks each, rank r of all being rank r mod 2 of replica r / 2.
struct World {
  explicit World(Communicator& all)
      : pipeline(all.split(all.rank() / 2)), replicas(all.split(all.rank() % 2)) {}

  GradientHolders holders_of(const Transformer& model) const {
    return {.model = model,
            .whole = whole_model(),
            .sites = kSites,
            .pipeline = *pipeline,
            .replicas = *replicas};
  }

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
      GradientSums(world.holders_of(model), bucket_bytes).add_up();
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

// Where each parameter has an owner it alone has the sum, and gives what it makes of the parameter
// to all.
TEST(GradientSums, GoToTheReplicaThatUpdates) {
  for (const int64_t bucket_bytes : {1, 1000, 1 << 20}) {
    run_on_threads(6, [&](Communicator& all) {
      const World world(all);
      const Transformer model = model_at(world.pipeline->rank());
      const Transformer& whole = whole_model();
      const std::vector<int> owners = update_owners(whole.parameters(), kSites, 3);
      GradientHolders holders = world.holders_of(model);
      holders.owners = owners;
      GradientSums sums(holders, bucket_bytes);
      for (const Parameter& p : model.parameters().all()) {
        p.tensor.mutable_grad() = part_of(p, all.rank());
      }
      sums.add_up();
      int64_t counted = 0;
      for (size_t i = 0; i < owners.size(); ++i) {
        const Parameter& of_whole = whole.parameters().all()[i];
        const Parameter* p = model.parameters().find(of_whole.site, of_whole.role);
        if (p == nullptr) continue;
        const bool is_owner = owners[i] == world.replicas->rank();
        ASSERT_EQ(p->tensor.grad().defined(), is_owner);
        if (sums.counts(*p)) counted += p->tensor.numel();
        if (!is_owner) continue;
        at::Tensor expected = at::zeros_like(p->tensor);
        for (const size_t holder : stages_with(*p, kSites)) {
          for (int replica = 0; replica < 3; ++replica) {
            expected = expected + part_of(*p, replica * 2 + static_cast<int>(holder));
          }
        }
        EXPECT_TRUE(at::allclose(p->tensor.grad(), expected, 1e-12, 1e-12))
            << p->role << " of site " << p->site;
        const at::NoGradGuard not_recording;
        at::Tensor(p->tensor).add_(owners[i] + 1);
      }
      sums.share_parameters();
      const Transformer before = model_at(world.pipeline->rank());
      for (size_t i = 0; i < owners.size(); ++i) {
        const Parameter& of_whole = whole.parameters().all()[i];
        const Parameter* p = model.parameters().find(of_whole.site, of_whole.role);
        if (p == nullptr) continue;
        const at::Tensor old = before.parameters().find(p->site, p->role)->tensor;
        EXPECT_TRUE(p->tensor.equal(old + (owners[i] + 1))) << p->role << " of site " << p->site;
      }
      const at::Tensor all_counted = at::full({1}, counted, at::kLong);
      all.all_reduce_sum(all_counted, Traffic::number);
      EXPECT_EQ(all_counted.item<int64_t>(), whole.parameters().count());
      all.require_nothing_left();
    });
  }
}

// Who alone has a gradient gives it to the others; where nobody has one it stays undefined.
TEST(GradientSums, KnowWhoHasNone) {
  run_on_threads(6, [](Communicator& all) {
    const World world(all);
    const Transformer model = model_at(world.pipeline->rank());
    GradientSums sums(world.holders_of(model));
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

std::vector<ModelConfig> kinds_of_models() {
  std::vector<ModelConfig> all;
  for (const char* type :
       {"residual", "attn_res", "mhc", "dense_former", "mrla", "depth_attention"}) {
    all.push_back(small_config({{"type", type}}, 3));
  }
  all.push_back(small_config(block_attn_res(3), 3));
  all.back().tie_embeddings = true;
  all.push_back(kimi_config(/*k3=*/false, block_attn_res(3)));
  return all;
}

// Two replicas of a model, with two micro-batches each: each parameter in a bucket of its own, or
// all in one. Sums that begin during the backward are those that begin after it, to the bit.
TEST(GradientSums, BeginWhileTheBackwardRuns) {
  at::set_num_threads(1);
  for (const ModelConfig& config : kinds_of_models()) {
    for (const bool recompute : {false, true}) {
      run_on_threads(2, [&](Communicator& replicas) {
        at::set_num_threads(1);
        const auto alone = replicas.split(replicas.rank());
        const Transformer model = model_of(config, at::kFloat);
        const PipelinePlan plan =
            plan_pipeline(model.mixer(), model.sublayers(), {}, TransferPolicy::owned);
        Pipeline pipeline(model, plan, *alone);
        std::vector<Batch> batches;
        for (int m = 0; m < 2; ++m) {
          const int seed = 10 * replicas.rank() + m;
          batches.push_back({random_ids(2, 6, seed), random_ids(2, 6, 100 + seed)});
        }
        // Called with sums for the backward, or none.
        const auto gradients = [&](int64_t bucket_bytes, bool overlaps) {
          GradientSums sums({.model = model,
                             .whole = model,
                             .sites = plan.sites_by_rank(),
                             .pipeline = *alone,
                             .replicas = replicas},
                            bucket_bytes);
          for (const Parameter& p : model.parameters().all()) p.tensor.mutable_grad().reset();
          const int64_t sent = replicas.bytes_sent(Traffic::parameter_gradient);
          pipeline.forward_backward(batches, {.recompute = recompute}, overlaps ? &sums : nullptr);
          EXPECT_EQ(replicas.bytes_sent(Traffic::parameter_gradient) > sent, overlaps);
          sums.add_up();
          std::vector<at::Tensor> all;
          for (const Parameter& p : model.parameters().all()) all.push_back(p.tensor.grad());
          return all;
        };
        const std::vector<at::Tensor> expected = gradients(1 << 20, /*overlaps=*/false);
        for (const int64_t bucket_bytes : {1, 3000, 1 << 20}) {
          const std::vector<at::Tensor> actual = gradients(bucket_bytes, /*overlaps=*/true);
          for (size_t i = 0; i < actual.size(); ++i) {
            const Parameter& p = model.parameters().all()[i];
            ASSERT_EQ(actual[i].defined(), expected[i].defined());
            EXPECT_TRUE(!actual[i].defined() || actual[i].equal(expected[i]))
                << p.role << " of site " << p.site;
          }
        }
        replicas.require_nothing_left();
      });
    }
  }
}

// The gradient of a later site is on its way while an earlier one still has none; a gradient that
// comes after its sum had begun is an error, and no wrong number.
TEST(GradientSums, BeginAsSoonAsGradientsAreFinal) {
  run_on_threads(2, [](Communicator& replicas) {
    const auto alone = replicas.split(replicas.rank());
    const SiteRange all_sites = {0, 7};
    const Transformer model(small_config(residual()), kSmallVocabulary, /*seed=*/1, at::kDouble);
    const at::Tensor late = model.parameters().find(0, "q_proj")->tensor,
                     early = model.parameters().find(6, "head")->tensor;
    GradientSums sums({.model = model,
                       .whole = model,
                       .sites = {SiteSet(all_sites)},
                       .pipeline = *alone,
                       .replicas = replicas},
                      /*bucket_bytes=*/1);
    const auto sent = [&] { return replicas.bytes_sent(Traffic::parameter_gradient); };
    early.sum().backward();
    EXPECT_EQ(sent(), 0);
    sums.begin_last_backward(all_sites);
    late.sum().backward();
    EXPECT_EQ(sent(), 0);
    early.sum().backward();
    EXPECT_THAT(message_of<Error>([&] { early.sum().backward(); }),
                ::testing::HasSubstr("head of site 6 got a gradient after its sum had begun"));
    sums.end_last_backward(all_sites);
    sums.add_up();
    EXPECT_TRUE(late.grad().equal(at::full_like(late, 2)));
  });
}

TEST(GradientSums, CountEveryParameterOnce) {
  std::mutex one_at_a_time;
  int64_t counted = 0, held = 0;
  run_on_threads(2, [&](Communicator& pipeline) {
    const auto alone = pipeline.split(pipeline.rank());
    const Transformer model = model_at(pipeline.rank());
    const GradientSums sums({.model = model,
                             .whole = whole_model(),
                             .sites = kSites,
                             .pipeline = pipeline,
                             .replicas = *alone});
    const std::lock_guard lock(one_at_a_time);
    for (const Parameter& p : model.parameters().all()) {
      held += p.tensor.numel();
      if (sums.counts(p)) counted += p.tensor.numel();
    }
  });
  EXPECT_EQ(counted, whole_model().parameters().count());
  EXPECT_EQ(held - counted, kSmallVocabulary * whole_model().config().width);
}

}  // namespace
}  // namespace attnres::testing::gradient_sums_test
