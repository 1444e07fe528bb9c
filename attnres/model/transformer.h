// A decoder-only Transformer whose sublayers alternate self-attention (even sites) and feed-forward
// (odd sites), combined over depth by a DepthMixer. Token ids in, normalised hidden states out.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "attnres/depth/mixing_analysis.h"
#include "attnres/layers/product_weight.h"
#include "attnres/layers/sublayer.h"
#include "attnres/model/batch.h"
#include "attnres/model/config.h"
#include "attnres/parameters/parameters.h"

namespace attnres {

// Looks on while sublayers run. A recomputed span calls it in the first pass only.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  // After site `site` (0 .. L) read.
  virtual void on_read(int /*site*/, const ReadTrace&) {}
  // After sublayer `site` returned y, which may be exchanged, before the state takes it in.
  virtual void on_write(int /*site*/, at::Tensor& /*y*/) {}
  // After that.
  virtual void on_output(int /*site*/, const at::Tensor& /*y*/,
                         const at::Tensor& /*running_state*/) {}
};

// By site: tokens that chose each expert, [E], summed over runs.
using ExpertLoads = std::map<int, at::Tensor>;

// Losses summed over the tokens that count, and how many they are.
struct LossSum {
  at::Tensor sum;  // a scalar, in nats
  int64_t count = 0;
};

struct RunContext {
  bool recompute = false;  // keep only what crosses a cut; compute the rest again backward
  RunObserver* observer = nullptr;
  ExpertLoads* expert_loads = nullptr;  // added to; a recomputed span counts once
};

// The whole model, or of sites 0 .. L, the output being L, those that a pipeline stage has, or a
// process with several stages: it holds the parameters that these use, and equals the whole in
// them. Site 0 brings the token embedding and the state's start, site L the output's mixing and
// norm and the head. A parameter that several stages use (`Parameter::used_at`: tied embeddings,
// one map for all sites) is in each of them.
//
// Or the part of it that a process of a tensor group has (layers/tensor_parallel.h): its parts of
// the sublayers, and all else whole. A call is then one of all the group's processes, with the same
// ids and spans; every depth state has the own tokens' rows, but for tensors of heads
// (depth/state_plan.h), and of losses there are those of the own tokens.
class Transformer {
 public:
  // Without a seed it has shapes but no values, for whoever loads them; on the device `meta` no
  // memory either, for planning. A group must outlive it; throws UsageError where it cannot be cut
  // into equal parts (layer_kind.h).
  Transformer(const ModelConfig& config, int64_t vocab_size, std::optional<uint64_t> seed,
              Precision precision = {}, at::Device device = at::kCPU, const SiteSet& sites = {},
              const TensorGroup* group = nullptr);

  // Ids and targets may be on the CPU, where they are checked and counted without waiting for a
  // device, or on the parameters' device.

  // [T, D], as activations. ids_T is int64, and in the vocabulary: of requests, texts to score and
  // rows of training who took them in has checked that (infer/score.h, data/training_tokens.h).
  at::Tensor token_embeddings(const at::Tensor& ids_T) const;
  // The state before site 0 of a call's tokens, span after span; of a group's, the own ones.
  DepthState embed(const at::Tensor& ids_T, Spans spans) const;
  // The same of B whole sequences. This, and what begins with it, throws Error naming an id outside
  // the vocabulary.
  DepthState embed(const at::Tensor& ids_BT) const;
  // Executes the sublayers from state.site up to, not including, site `last`. The only way to.
  // Throws Error, and changes nothing, where a site is another stage's, or the state's spans are of
  // another model's pool, not the newest of their sequences, or would have to be recomputed.
  void run(DepthState& state, int last, const RunContext& context = {}) const;
  // What site L reads: [T, D], normalised; of a group's, the own tokens'.
  at::Tensor output(DepthState& state, const RunContext& context = {}) const;

  // embed, run and output of all tokens: [T, D].
  at::Tensor hidden(const at::Tensor& ids_T, Spans spans, const RunContext& context = {}) const;
  // The same of B whole sequences: [B, T, D].
  at::Tensor hidden(const at::Tensor& ids_BT, const RunContext& context = {}) const;
  // hidden times the head, in the parameters' dtype: [.., V]. For a few tokens; training never
  // holds all logits.
  at::Tensor logits(const at::Tensor& hidden) const;
  // Mean negative log-likelihood of targets_BT in nats; targets of -100 do not count. Of a group's,
  // what its tokens add to it.
  at::Tensor loss(const at::Tensor& ids_BT, const at::Tensor& targets_BT,
                  const RunContext& context = {}) const;
  // The same summed instead of averaged: sums of parts add up to that of the whole.
  LossSum loss_sum(const Batch& batch, const RunContext& context = {}) const;
  // The same of a state of these tokens, from its site on.
  LossSum loss_sum(DepthState& state, const at::Tensor& targets_BT,
                   const RunContext& context = {}) const;
  // The same of the output that is read at site L. Of a group's, of its tokens among the targets'.
  LossSum loss_sum_of(const at::Tensor& hidden_TD, const at::Tensor& targets_BT) const;
  // log p(targets_BT) of each token, [B, T] float32 or better, without gradients.
  at::Tensor log_probabilities(const at::Tensor& ids_BT, const at::Tensor& targets_BT) const;

  // What a pool keeps of this model's sequences, by layer of the pool.
  std::vector<std::vector<KeptTensor>> kept() const;
  // For decoding: spans that its `append` gives continue its sequences. A stage has its own.
  std::unique_ptr<SequencePool> make_pool(const SequencePoolSize& size) const;

  const ModelConfig& config() const { return config_; }
  const DepthMixer& mixer() const { return *mixer_; }
  const ParameterRegistry& parameters() const { return parameters_; }
  int64_t vocab_size() const { return vocab_size_; }
  int sublayers() const { return config_.sublayers(); }  // L, of the whole model
  const SiteSet& sites() const { return sites_; }
  const Sublayer& sublayer(int site) const { return *sublayers_.at(site); }  // of these sites

 private:
  void require_sites(int first, int last) const;
  // This process's rows of those of all tokens.
  at::Tensor own_tokens(const at::Tensor& all) const;
  at::Tensor head_values() const { return head_.values(parameters_.precision().parameters); }
  void require_spans(const DepthState& state, const RunContext& context) const;
  // The output of all tokens, from the state's site on.
  at::Tensor hidden_of(DepthState state, const RunContext& context) const;
  SublayerInput read(DepthState& state, const RunContext& context) const;
  void run_sublayers(DepthState& state, int last, const RunContext& context) const;

  ModelConfig config_;
  int64_t vocab_size_;
  SiteSet sites_;
  ParameterRegistry parameters_;
  ProductWeight embedding_;  // [V, D]
  ProductWeight head_;       // [V, D]; the embedding itself when tied
  std::unique_ptr<DepthMixer> mixer_;
  std::vector<std::unique_ptr<Sublayer>> sublayers_;  // by site; null those of other stages
};

}  // namespace attnres
