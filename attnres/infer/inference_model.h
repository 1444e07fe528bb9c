// A model that continues and scores sequences: by this process alone, or by a tensor group of which
// this is rank 0 (inference_group.h).
//
// What a pass over tokens needs of other processes lies behind these functions. The rest is done
// here, with `transformer()`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "attnres/infer/model_description.h"
#include "attnres/infer/step_depth_weights.h"
#include "attnres/layers/sequence_pool.h"
#include "attnres/model/transformer.h"
#include "attnres/parameters/tensor_group.h"

namespace attnres {

// Room in a process's memory.
struct TokenRoom {
  int64_t tokens = 0;
  int64_t free_bytes = 0;
};

// Something that is done to a pool's sequences, other than appending.
struct PoolChange {
  enum class Kind : int64_t { add, fork, truncate, snapshot, free };
  Kind kind = Kind::add;
  int64_t sequence = -1;  // none yet of add
  int64_t length = 0;     // of truncate
};

class InferenceModel {
 public:
  virtual ~InferenceModel() = default;

  // What this process has of it, in a group a part: for its configuration and registry, and for
  // logits of hidden states. A pass by it alone would wait for the rest of the group.
  virtual const Transformer& transformer() const = 0;

  // How many tokens a pool has room for, `size.tokens` at most, in memory that is free; all where
  // nothing is known of it. Of a group, on the rank that has least room.
  virtual TokenRoom count_tokens(const SequencePoolSize& size) const = 0;
  // A group has one pool, in the place of the one before.
  virtual std::unique_ptr<SequencePool> make_pool(const SequencePoolSize& size) const = 0;
  // Does this to the pool, and gives what its function of that name returns, if anything. Throws as
  // that.
  virtual int64_t change(SequencePool& pool, const PoolChange& change) const = 0;
  // The last layer's output [T, D] of these tokens of the pool's sequences. Where `weights` is not
  // null it gets the tokens' depth weights.
  virtual at::Tensor decode(SequencePool& pool, const std::vector<int32_t>& ids,
                            const std::vector<Continuation>& continuations,
                            StepDepthWeights* weights) const = 0;
  // Transformer::log_probabilities.
  virtual at::Tensor log_probabilities(const at::Tensor& ids_BT,
                                       const at::Tensor& targets_BT) const = 0;
  // Those that have depth weights.
  virtual std::vector<DepthSite> depth_sites() const = 0;
};

// By this process alone.
class LocalModel : public InferenceModel {
 public:
  // The model must outlive it.
  explicit LocalModel(const Transformer& model) : model_(model) {}
  explicit LocalModel(std::unique_ptr<const Transformer> model)
      : owned_(std::move(model)), model_(*owned_) {}

  const Transformer& transformer() const override { return model_; }
  TokenRoom count_tokens(const SequencePoolSize& size) const override;
  std::unique_ptr<SequencePool> make_pool(const SequencePoolSize& size) const override;
  int64_t change(SequencePool& pool, const PoolChange& change) const override;
  at::Tensor decode(SequencePool& pool, const std::vector<int32_t>& ids,
                    const std::vector<Continuation>& continuations,
                    StepDepthWeights* weights) const override;
  at::Tensor log_probabilities(const at::Tensor& ids_BT,
                               const at::Tensor& targets_BT) const override;
  std::vector<DepthSite> depth_sites() const override;

 private:
  std::unique_ptr<const Transformer> owned_;  // null where another has it
  const Transformer& model_;
};

// TokenRoom::tokens where so many bytes are free; all where that is 0.
int64_t tokens_that_fit(const Transformer& model, SequencePoolSize size, int64_t free_bytes);

// Loads a model: without a group the whole, or a process's part.
using LoadTransformer = std::function<std::unique_ptr<Transformer>(const TensorGroup* group)>;

// Has a model loaded, by this process or by all of a group.
using MakeInferenceModel = std::function<std::unique_ptr<InferenceModel>(const LoadTransformer&)>;
std::unique_ptr<InferenceModel> make_local_model(const LoadTransformer& load);

}  // namespace attnres
