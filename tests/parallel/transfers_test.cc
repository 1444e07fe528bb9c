#include "attnres/parallel/transfers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "attnres/support/error.h"
#include "tests/model/stages.h"

namespace attnres::testing::transfers_test {
namespace {

using enum TransferPolicy;
using ::testing::ElementsAre;

constexpr TransferPolicy kPolicies[] = {naive, report, owned};

// Shapes without numbers.
Transformer planned(const Json& mixing, int64_t layers) {
  return {small_config(mixing, layers), kSmallVocabulary, /*seed=*/std::nullopt, at::kFloat,
          at::kMeta};
}

std::vector<StageTransfers> transfers_of(const Transformer& model, const PipelineSize& size,
                                         TransferPolicy policy) {
  return plan_transfers(model.mixer(), model.sublayers(), size,
                        even_stages(model.sublayers(), size.stages()), policy);
}

struct Counts {
  int64_t blocks = 0, embeddings = 0, partial_sums = 0;
  int64_t most_blocks = 0;  // of a transition
};

Counts count(const std::vector<StageTransfers>& stages) {
  Counts counts;
  for (const StageTransfers& stage : stages) {
    const auto embeddings = std::count(stage.received.begin(), stage.received.end(), 0);
    const int64_t blocks = sealed_into(stage).tensors - embeddings;
    counts.embeddings += embeddings;
    counts.blocks += blocks;
    counts.most_blocks = std::max(counts.most_blocks, blocks);
    counts.partial_sums += open_into(stage).tensors;
  }
  return counts;
}

// Stages that seal N_p blocks each.
TEST(Transfers, AreAsManyAsEquations7And8Say) {
  for (int P = 1; P <= 5; ++P) {
    for (int V = 1; V <= 4; ++V) {
      for (int per_stage = 1; per_stage <= 2; ++per_stage) {
        const PipelineSize size = {P, V};
        const int64_t C = P * V, N = per_stage;
        const Transformer model = planned(block_attn_res(2), C * N);
        const auto counted = [&](TransferPolicy policy) {
          return count(transfers_of(model, size, policy));
        };
        const std::string where = fmt::format("{} x {}, {} blocks a stage", P, V, N);
        EXPECT_EQ(counted(naive).blocks, C * (C - 1) / 2 * N) << where;
        EXPECT_EQ(counted(naive).embeddings, C - 1) << where;
        EXPECT_EQ(counted(naive).most_blocks, (C - 1) * N) << where;
        if (P > 1) {
          EXPECT_EQ(counted(report).blocks, (P * (P - 1) / 2 + (V - 1) * P * P) * N) << where;
          EXPECT_EQ(counted(owned).blocks, (P * (P - 1) / 2 + (V - 1) * P * (P - 1)) * N) << where;
          EXPECT_EQ(counted(report).most_blocks, (V > 1 ? P : P - 1) * N) << where;
          EXPECT_EQ(counted(owned).most_blocks, (P - 1) * N) << where;
        }
        for (const TransferPolicy policy : kPolicies) {
          EXPECT_EQ(counted(policy).partial_sums, 0) << where;
          if (policy != naive) {
            EXPECT_EQ(counted(policy).embeddings, P - 1) << where;
          }
        }
      }
    }
  }
}

TEST(Transfers, AreThePublishedNumbers) {
  const Transformer one_block_a_stage = planned(block_attn_res(2), 8);
  const auto blocks = [&](TransferPolicy policy) {
    return count(transfers_of(one_block_a_stage, {4, 2}, policy)).blocks;
  };
  EXPECT_EQ(blocks(naive), 28);
  EXPECT_EQ(blocks(report), 22);
  EXPECT_EQ(blocks(owned), 18);
}

// Every block spans two stages, as in the report's Fig. 3; what each rank receives is written
// there.
TEST(Transfers, AreThoseOfFigure3) {
  const Transformer model = planned(block_attn_res(4), 8);
  const auto received = [&](TransferPolicy policy) {
    std::vector<std::vector<int>> lists;
    for (const StageTransfers& stage : transfers_of(model, {4, 2}, policy)) {
      lists.push_back(stage.received);
    }
    return lists;
  };
  using List = std::vector<int>;
  EXPECT_THAT(received(report), ElementsAre(List{}, List{0}, List{0, 1}, List{0, 1}, List{1, 2},
                                            List{1, 2}, List{2, 3}, List{2, 3}));
  EXPECT_THAT(received(owned), ElementsAre(List{}, List{0}, List{0, 1}, List{0, 1}, List{1, 2},
                                           List{2}, List{2, 3}, List{3}));
  const auto sealed = [&](TransferPolicy policy) {
    const Counts counts = count(transfers_of(model, {4, 2}, policy));
    EXPECT_EQ(counts.partial_sums, 4);
    return counts.blocks + counts.embeddings;
  };
  EXPECT_EQ(sealed(naive), 19);
  EXPECT_EQ(sealed(report), 13);
  EXPECT_EQ(sealed(owned), 11);
}

// What each rank holds and receives, by the words of the policies, stage after stage.
int64_t walk(const Transformer& model, const PipelineSize& size,
             const std::vector<SiteRange>& stages, TransferPolicy policy) {
  std::vector<std::set<size_t>> held(size.ranks);
  int64_t sent = 0;
  for (int stage = 0; stage < size.stages(); ++stage) {
    const StatePlan before = model.mixer().plan(stages[stage].first);
    std::set<size_t>& own = held[size.rank_of(stage)];
    for (size_t i = 0; i < before.sealed.size(); ++i) {
      if (before.sealed[i].last_reader < stages[stage].first) continue;
      if (stage > 0 && (policy == naive || !own.contains(i))) ++sent;
      own.insert(i);
    }
    if (policy == owned && stage + 1 < size.stages()) {
      const size_t after = model.mixer().plan(stages[stage + 1].first).sealed.size();
      for (size_t i = before.sealed.size(); i < after; ++i) own.insert(i);
    }
  }
  return sent;
}

class EveryMechanismCrosses : public ::testing::TestWithParam<Mixing> {};

INSTANTIATE_TEST_SUITE_P(Mechanisms, EveryMechanismCrosses, ::testing::ValuesIn(every_variant()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EveryMechanismCrosses, WhatThePoliciesSay) {
  const Transformer model = planned(GetParam().json, 6);
  const std::vector<std::pair<PipelineSize, std::vector<int>>> placements = {
      {{2, 1}, {0, 5, 13}},
      {{2, 2}, {0, 1, 6, 7, 13}},
      {{3, 2}, {0, 3, 4, 7, 8, 12, 13}},
      {{2, 3}, {0, 2, 4, 6, 8, 10, 13}},
      {{4, 2}, {0, 1, 2, 3, 5, 8, 11, 12, 13}}};
  for (const auto& [size, ends] : placements) {
    const std::vector<SiteRange> stages = ranges_between(ends);
    int64_t last = std::numeric_limits<int64_t>::max();
    for (const TransferPolicy policy : kPolicies) {
      int64_t sealed = 0;
      const auto all = plan_transfers(model.mixer(), model.sublayers(), size, stages, policy);
      for (size_t stage = 0; stage < all.size(); ++stage) {
        sealed += sealed_into(all[stage]).tensors;
        const StatePlan before = model.mixer().plan(stages[stage].first);
        EXPECT_EQ(open_into(all[stage]).tensors,
                  stage == 0 ? 0 : static_cast<int64_t>(before.open.size()));
      }
      EXPECT_EQ(sealed, walk(model, size, stages, policy)) << name_of(policy);
      EXPECT_LE(sealed, last) << name_of(policy);
      last = sealed;
    }
  }
}

// The report's own count of what a token takes: numbers, not tensors.
TEST(Transfers, CountNumbersOfAToken) {
  const Transformer model = planned(block_attn_res(2), 2);
  const auto stages =
      plan_transfers(model.mixer(), 4, {2, 1}, ranges_between({0, 3, 5}), TransferPolicy::owned);
  EXPECT_EQ(sealed_into(stages[1]), (TransferCount{2, 2 * 32}));
  EXPECT_EQ(open_into(stages[1]), (TransferCount{1, 32}));
  EXPECT_EQ(sealed_into(stages[0]), TransferCount{});
  EXPECT_EQ(open_into(stages[0]), TransferCount{});
}

TEST(Transfers, StagesShareSublayersEvenly) {
  const auto ends = [](int sublayers, int stages) {
    std::vector<int> list;
    for (const SiteRange& sites : even_stages(sublayers, stages)) list.push_back(sites.last);
    return list;
  };
  EXPECT_THAT(ends(8, 4), ElementsAre(2, 4, 6, 9));
  EXPECT_THAT(ends(8, 3), ElementsAre(3, 6, 9));
  EXPECT_THAT(ends(2, 2), ElementsAre(1, 3));
  EXPECT_THAT(ends(6, 1), ElementsAre(7));
  EXPECT_THROW(even_stages(6, 7), UsageError);
}

TEST(Transfers, RefuseStagesThatAreNotTheModels) {
  const Transformer model = planned(residual(), 3);
  const auto plan = [&](const PipelineSize& size, const std::vector<SiteRange>& stages) {
    return plan_transfers(model.mixer(), 6, size, stages, TransferPolicy::naive);
  };
  EXPECT_NO_THROW(plan({2, 1}, {{0, 3}, {3, 7}}));
  EXPECT_THROW(plan({2, 2}, {{0, 3}, {3, 7}}), Error);
  EXPECT_THROW(plan({2, 1}, {{0, 3}, {4, 7}}), Error);
  EXPECT_THROW(plan({2, 1}, {{0, 3}, {3, 6}}), Error);
  EXPECT_THROW(plan({2, 1}, {{0, 3}, {3, 3}}), Error);
  EXPECT_THROW(plan({2, 1}, {{1, 3}, {3, 7}}), Error);
}

TEST(Transfers, PoliciesHaveNames) {
  for (const TransferPolicy policy : kPolicies) {
    EXPECT_EQ(transfer_policy(name_of(policy)), policy);
  }
  EXPECT_THROW(transfer_policy("both"), UsageError);
}

}  // namespace
}  // namespace attnres::testing::transfers_test
