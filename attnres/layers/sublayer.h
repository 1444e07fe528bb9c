// A sublayer is one self-attention or one feed-forward: a function of its normalised input that
// returns only its output. It never adds, never normalises its input, and knows nothing of
// residuals; a DepthMixer owns everything between sublayers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "attnres/layers/sequence_pool.h"
#include "attnres/layers/spans.h"

namespace attnres {

// An attention's own projections of the tokens of this call, before rotary positions.
struct AttentionHeads {
  at::Tensor q;     // [T, H, K]
  at::Tensor k, v;  // [T, Hkv, K]
};

// What a mechanism asks of a sublayer beyond y = f(x). One that cannot serve a need refuses it.
struct SublayerNeeds {
  bool separate_qkv = false;    // attention: the query, key and value maps read inputs of their own
  bool separate_value = false;  // attention: the value map reads an input of its own
  bool adapt_heads = false;     // attention: `SublayerInput::adapt_heads` is called
  // Factors of the starting standard deviation of the weights: of all but the query and key maps,
  // and beside that of the last map.
  double init_gain = 1;
  double output_init_gain = 1;

  // Inputs [T, D] that the sublayer reads.
  int inputs() const { return separate_qkv ? 3 : separate_value ? 2 : 1; }
};

struct SublayerInput {
  at::Tensor x = {};                            // [T, D], normalised
  at::Tensor query = {}, key = {}, value = {};  // [T, D]; undefined: x
  // Changes an attention's projections (norms of them, mixtures with those of other layers).
  std::function<void(AttentionHeads&)> adapt_heads = {};

  // What the query, key and value maps read; none where they all read x.
  std::vector<at::Tensor> own_inputs() const {
    if (!query.defined() && !key.defined() && !value.defined()) return {};
    return {query.defined() ? query : x, key.defined() ? key : x, value.defined() ? value : x};
  }
};

struct SublayerOutput {
  at::Tensor y = {};            // [T, D]
  at::Tensor expert_load = {};  // [E] int64: tokens that chose each expert, where there are experts
};

// The sequences of a call, as one layer sees them.
struct SequenceContext {
  std::shared_ptr<const Spans> spans = {};  // null: one whole sequence
  int layer = 0;                            // of the spans' pool, which keeps what is this layer's
};

// Those of a call of this many tokens.
std::shared_ptr<const Spans> spans_of(const SequenceContext& context, int64_t tokens);

// What a sublayer takes for each token of a training step.
struct SublayerCost {
  double multiply_adds = 0;   // of a forward pass beside its linear maps
  double kept = 0;            // numbers that its backward needs
  double for_maps = 0;        // of these, what only gradients of its maps' weights ask for
  double widest = 0;          // numbers of the widest tensor between its maps
  double active_experts = 1;  // the part of stacked experts that a token passes through
  // In the place of `kept` on a device where every expert computes every token (layers/experts.h).
  double kept_by_all_experts = 0;
};

class Sublayer {
 public:
  virtual ~Sublayer() = default;
  virtual SublayerOutput forward(const SublayerInput& input, const SequenceContext&) const = 0;
  // For a token among `context` tokens that see each other causally.
  virtual SublayerCost cost(int64_t context) const = 0;
  // What it keeps of earlier tokens while decoding (keys and values, a recurrent state).
  virtual std::vector<KeptTensor> kept() const { return {}; }
};

}  // namespace attnres
