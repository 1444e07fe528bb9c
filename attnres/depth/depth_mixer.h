// Mixers combine: everything between sublayers. A mixer decides what is kept of the embedding and
// of every sublayer's output, what each site reads of it, and the norms around a sublayer. The
// Transformer is one loop for every mechanism:
//
//   state = mixer.start(embedding)
//   for site in 0 .. L-1:  x = mixer.read(state);  y = sublayer[site](x);  mixer.write(state, y)
//   output = mixer.read(state)        at site L, normalised for the head
//
// A mixer never changes once built, so that requests and micro-batches may share it: what is
// derived lives in the state.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "attnres/depth/state_plan.h"
#include "attnres/layers/sublayer.h"

namespace attnres {

// What a mixer derives from a state and could derive again.
struct DepthCache {
  virtual ~DepthCache() = default;
};

// All that the depth state of a batch of tokens is. `sealed` and `open` are what crosses a boundary
// (a recomputed span, a pipeline stage); every tensor is [B, T, ...].
struct DepthState {
  std::vector<at::Tensor> sealed = {};     // never changes once appended
  std::vector<at::Tensor> open = {};       // still changes
  at::Tensor pending = {};                 // a sublayer's output, not yet added
  int site = 0;                            // the site that reads next
  std::unique_ptr<DepthCache> cache = {};  // the mixer's own
  SequenceContext sequence = {};           // while decoding, what the mixer keeps of earlier tokens
  // Mixing weights and norm statistics count as constants, so that everything read is linear in
  // the embedding and the outputs written, to autograd: of depth mixing matrices.
  bool hold_weights = false;
};

// What a read saw, for those who look. Without gradients, unless the state holds its weights.
struct ReadTrace {
  at::Tensor weights;  // [N, B, T] depth weights; undefined for mechanisms that have none
  at::Tensor mixed;    // [B, T, D] the mixed input, before its norm
  // Mixed inputs that an attention reads in other streams, by their names; `mixed` is the first.
  std::vector<std::pair<std::string, at::Tensor>> other_streams;
};

class DepthMixer {
 public:
  virtual ~DepthMixer() = default;

  // What this mechanism asks of the sublayer at a site.
  virtual SublayerNeeds needs(int /*site*/) const { return {}; }
  // What it keeps of earlier tokens while decoding; null for those that combine over depth only.
  virtual std::unique_ptr<SequenceCache> make_cache(int64_t /*batch*/, int64_t /*capacity*/) const {
    return nullptr;
  }

  virtual DepthState start(const at::Tensor& embedding_BTD) const = 0;
  // Folds the pending output in, mixes, normalises. Site L gives the input of the head.
  virtual SublayerInput read(DepthState& state, ReadTrace* trace = nullptr) const = 0;
  virtual void write(DepthState& state, SublayerOutput output) const = 0;
  // Folds the pending output in and drops the cache, so that `sealed` and `open` are all there is.
  virtual void settle(DepthState& state) const = 0;

  // What a settled state is before site `site`, 0 to L.
  virtual StatePlan plan(int site) const = 0;
  // The sites, ascending, before which a recomputed span may end.
  virtual std::vector<int> cuts() const = 0;
  // Names of the sources whose weights a trace of this site holds; empty if it holds none.
  virtual std::vector<std::string> source_names(int site) const = 0;
  // What the last sublayer left behind, its pending output added: the residual stream, the partial
  // sum, or the block that it ends. Its magnitude is Fig. 5b of the report.
  virtual at::Tensor running_state(const DepthState& state) const = 0;
};

}  // namespace attnres
