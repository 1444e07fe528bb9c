#include "attnres/infer/inference_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "attnres/model/token_depth_weights.h"
#include "attnres/support/compute_device.h"
#include "attnres/support/machine.h"
#include "attnres/support/memory.h"

namespace attnres {

TokenRoom LocalModel::count_tokens(const SequencePoolSize& size) const {
  give_back_freed_memory();  // of loading
  const at::Device device = model_.parameters().device();
  constexpr double kForPool = 0.9;  // of a device's; the rest is for what a step computes
  const int64_t free =
      device.is_cpu()
          ? available_memory()
          : static_cast<int64_t>(kForPool * static_cast<double>(device_memory(device).free));
  return {tokens_that_fit(model_, size, free), free};
}

std::unique_ptr<SequencePool> LocalModel::make_pool(const SequencePoolSize& size) const {
  return model_.make_pool(size);
}

int64_t LocalModel::change(SequencePool& pool, const PoolChange& change) const {
  switch (change.kind) {
    case PoolChange::Kind::add:
      return pool.add();
    case PoolChange::Kind::fork:
      return pool.fork(change.sequence);
    case PoolChange::Kind::truncate:
      return pool.truncate(change.sequence, change.length);
    case PoolChange::Kind::snapshot:
      pool.snapshot(change.sequence);
      return 0;
    case PoolChange::Kind::free:
      pool.free(change.sequence);
      return 0;
  }
  return 0;
}

at::Tensor LocalModel::decode(SequencePool& pool, const std::vector<int32_t>& ids,
                              const std::vector<Continuation>& continuations,
                              StepDepthWeights* weights) const {
  const at::Tensor ids_T = at::empty({std::ssize(ids)}, at::kLong);
  std::copy(ids.begin(), ids.end(), ids_T.mutable_data_ptr<int64_t>());
  return model_.hidden(ids_T, pool.append(continuations), {.observer = weights});
}

at::Tensor LocalModel::log_probabilities(const at::Tensor& ids_BT,
                                         const at::Tensor& targets_BT) const {
  return model_.log_probabilities(ids_BT, targets_BT);
}

std::vector<DepthSite> LocalModel::depth_sites() const {
  std::vector<DepthSite> sites;
  for (const TokenDepthWeights& site : token_depth_weights(model_, at::zeros({1}, at::kLong))) {
    sites.push_back({site.site, site.name, site.sources});
  }
  return sites;
}

int64_t tokens_that_fit(const Transformer& model, SequencePoolSize size, int64_t free_bytes) {
  const std::vector<std::vector<KeptTensor>> kept = model.kept();
  const auto fits = [&](int64_t tokens) {
    size.tokens = tokens;
    return pool_bytes(kept, size) <= free_bytes;
  };
  const int64_t wanted = size.tokens;
  if (free_bytes == 0 || fits(wanted)) return wanted;
  int64_t most = 0, too_many = wanted;
  while (too_many - most > 1) {
    const int64_t middle = most + (too_many - most) / 2;
    (fits(middle) ? most : too_many) = middle;
  }
  return most;
}

std::unique_ptr<InferenceModel> make_local_model(const LoadTransformer& load) {
  return std::make_unique<LocalModel>(load(nullptr));
}

}  // namespace attnres
