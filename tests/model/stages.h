// A small model in stages, and as a whole.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "tests/model/small_models.h"

namespace attnres::testing {

// The ranges of sites between these, ascending.
inline std::vector<SiteRange> ranges_between(const std::vector<int>& ends) {
  std::vector<SiteRange> ranges;
  for (size_t i = 1; i < ends.size(); ++i) ranges.push_back({ends[i - 1], ends[i]});
  return ranges;
}

// Ways to cut a model of three layers, whose sites are 0 to 6, the output: every site by itself;
// inside of layers, and of blocks of 2, 4 and 6; the output by itself.
inline std::vector<std::vector<SiteRange>> ways_to_cut_three_layers() {
  return {ranges_between({0, 1, 2, 3, 4, 5, 6, 7}), ranges_between({0, 3, 7}),
          ranges_between({0, 4, 5, 7}), ranges_between({0, 6, 7})};
}

// The sites of one stage.
inline SiteRange only_range(const Transformer& stage) {
  EXPECT_EQ(stage.sites().ranges().size(), 1u);
  return stage.sites().ranges().front();
}

// As small_model's, each with what its stage holds.
inline std::vector<Transformer> small_stages(const Json& depth_mixing,
                                             const std::vector<SiteRange>& ranges,
                                             const SmallModelOptions& options = {}) {
  ModelConfig config = small_config(depth_mixing, options.layers);
  config.tie_embeddings = options.tied;
  std::vector<Transformer> stages;
  for (const SiteRange& sites : ranges) {
    stages.push_back(perturbed(
        Transformer(config, options.vocab_size, /*seed=*/1, options.precision, at::kCPU, sites)));
  }
  return stages;
}

}  // namespace attnres::testing
