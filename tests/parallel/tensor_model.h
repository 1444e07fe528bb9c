// Models whose parts are computed by the processes of a tensor group, each on a thread.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>

#include "attnres/parallel/tensor_ranks.h"
#include "tests/model/small_models.h"
#include "tests/parallel/thread_communicator.h"

namespace attnres::testing {

// The part of a whole model, with its values.
inline Transformer part_of_model(const Transformer& whole, const TensorGroup& group,
                                 const SiteSet& sites = {}) {
  Transformer model(whole.config(), whole.vocab_size(), /*seed=*/std::nullopt,
                    whole.parameters().precision(), at::kCPU, sites, &group);
  for (const Parameter& p : model.parameters().all()) {
    const Parameter& of_whole = *whole.parameters().find(p.site, p.role);
    p.tensor.detach().copy_(part_of_parameter(group.part(), p, of_whole.tensor.detach()));
  }
  return model;
}

// Odd numbers of tokens, that no group shares out equally; some targets do not count, and the last
// one's tokens are those of three documents that do not see each other.
inline std::vector<Batch> odd_batches(int count) {
  std::vector<Batch> batches;
  for (int m = 0; m < count; ++m) {
    const int64_t rows = m % 2 == 0 ? 1 : 3;
    at::Tensor targets = random_ids(rows, 7, /*seed=*/20 + m);
    targets[0][m % 7] = -100;
    batches.push_back({random_ids(rows, 7, /*seed=*/10 + m), targets});
  }
  const int64_t tokens = batches.back().inputs_BT.numel();
  batches.back().sequences = {1, tokens - 3, 2};
  return batches;
}

}  // namespace attnres::testing
