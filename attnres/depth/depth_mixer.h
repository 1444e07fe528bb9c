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
#include <vector>

#include "attnres/depth/state_plan.h"
#include "attnres/layers/sublayer.h"

namespace attnres {

struct MixingAnalysis;

// What a mixer derives from `sealed` and `open` and could derive again.
struct DepthCache {
  virtual ~DepthCache() = default;
};

// What a site's read hands to the write that follows it.
struct CarriedToWrite {
  virtual ~CarriedToWrite() = default;
};

// All that the depth state of a batch of tokens is. `sealed` and `open` are what crosses a boundary
// (a recomputed span, a pipeline stage); every tensor is [T, ...], T tokens of a call's spans.
struct DepthState {
  std::vector<at::Tensor> sealed = {};  // never changes once appended
  std::vector<at::Tensor> open = {};    // still changes
  at::Tensor pending = {};              // a sublayer's output, from its write to the next read
  int site = 0;                         // the site that reads next, or whose write is next
  std::unique_ptr<CarriedToWrite> carried = {};  // from a site's read to its write
  std::unique_ptr<DepthCache> cache = {};        // may be dropped at any moment
  SequenceContext sequence = {};       // which tokens they are, for mixers that look over tokens
  MixingAnalysis* analysis = nullptr;  // of those who look (mixing_analysis.h); not owned
};

class DepthMixer {
 public:
  virtual ~DepthMixer() = default;

  // What this mechanism asks of the sublayer at a site.
  virtual SublayerNeeds needs(int /*site*/) const { return {}; }
  // What a site keeps of earlier tokens while decoding; nothing where it combines over depth only.
  virtual std::vector<KeptTensor> kept(int /*site*/) const { return {}; }

  virtual DepthState start(const at::Tensor& embedding_TD) const = 0;
  // Folds the pending output in, mixes, normalises. Site L gives the input of the head.
  virtual SublayerInput read(DepthState& state) const = 0;
  virtual void write(DepthState& state, SublayerOutput output) const = 0;
  // Folds the pending output in and drops the cache; what is computed afterwards stays the same,
  // bit for bit. Between a write and the next read, and at the start, `sealed` and `open` then are
  // all there is. Between a read and its write there is what it carries too: no cut can be there.
  virtual void settle(DepthState& state) const = 0;

  // What a settled state is before site `site`, 0 to L.
  virtual StatePlan plan(int site) const = 0;
  // The sites, ascending, before which a recomputed span may end.
  virtual std::vector<int> cuts() const = 0;
  // What the last sublayer left behind, its pending output added: the residual stream, the partial
  // sum, or the block that it ends. Its magnitude is Fig. 5b of the report.
  virtual at::Tensor running_state(const DepthState& state) const = 0;
};

}  // namespace attnres
