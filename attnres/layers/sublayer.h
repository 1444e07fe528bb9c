// A sublayer is one self-attention or one feed-forward: a function of its normalised input that
// returns only its output. It never adds, never normalises its input, and knows nothing of
// residuals; a DepthMixer owns everything between sublayers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace attnres {

struct SublayerInput {
  at::Tensor x;  // [B, T, D], normalised
};

struct SublayerOutput {
  at::Tensor y;  // [B, T, D]
};

// What a sublayer keeps of earlier tokens while decoding (keys and values, a recurrent state).
class SublayerCache {
 public:
  virtual ~SublayerCache() = default;
};

// Where the tokens of this call stand in their sequences.
struct SequenceContext {
  int64_t position = 0;            // of the first token
  SublayerCache* cache = nullptr;  // this sublayer's, when decoding; null in training
};

class Sublayer {
 public:
  virtual ~Sublayer() = default;
  virtual SublayerOutput forward(const SublayerInput& input, const SequenceContext&) const = 0;
  // A cache for `batch` sequences of at most `capacity` tokens; null if none is needed.
  virtual std::unique_ptr<SublayerCache> make_cache(int64_t /*batch*/, int64_t /*capacity*/) const {
    return nullptr;
  }
};

}  // namespace attnres
