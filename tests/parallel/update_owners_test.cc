#include "attnres/parallel/update_owners.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/model/stages.h"

namespace attnres::testing::update_owners_test {
namespace {

// On every rank the replicas differ by no more than the largest parameter that the rank alone has.
TEST(UpdateOwners, HaveTheSameToUpdate) {
  ModelConfig config = small_config(block_attn_res(3), 6);
  for (const bool tied : {false, true}) {
    config.tie_embeddings = tied;
    const Transformer whole(config, kSmallVocabulary, /*seed=*/std::nullopt, at::kFloat, at::kMeta);
    const std::vector<SiteSet> sites = {SiteSet(std::vector<SiteRange>{{0, 3}, {6, 9}}),
                                        SiteSet(std::vector<SiteRange>{{3, 6}, {9, 13}})};
    for (const int replicas : {1, 2, 3, 5}) {
      const std::vector<int> owners = update_owners(whole.parameters(), sites, replicas);
      for (size_t rank = 0; rank < sites.size(); ++rank) {
        std::vector<int64_t> loads(replicas);
        int64_t largest = 0;
        for (size_t i = 0; i < owners.size(); ++i) {
          const Parameter& p = whole.parameters().all()[i];
          const std::vector<size_t> holders = stages_with(p, sites);
          if (holders.size() > 1) {
            EXPECT_EQ(owners[i], kOwnerOfShared);
          }
          if (std::find(holders.begin(), holders.end(), rank) == holders.end()) continue;
          loads.at(owners[i]) += p.tensor.numel();
          largest = std::max(largest, p.tensor.numel());
        }
        const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
        EXPECT_LE(*most - *least, largest) << replicas << " replicas, rank " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace attnres::testing::update_owners_test
