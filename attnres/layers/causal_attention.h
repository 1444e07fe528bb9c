// Softmax attention in which a token sees itself and earlier tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>

namespace attnres {

// The masks of a call, each made for the first layer that asks.
class CausalMasks {
 public:
  // [tokens, keys] of bool: whether the call's t-th token, which is the (keys - tokens + t)-th of
  // its sequence, may see a key: its own or an earlier one, with a window one of the last `window`.
  const at::Tensor& mask(int64_t tokens, int64_t keys, int64_t window, at::Device device) const;

 private:
  mutable std::map<std::array<int64_t, 3>, at::Tensor> made_;  // a call is on one device
};

// [B, H, T, V]: softmax(q k^T / sqrt(K)) v over the keys that a query may see. Queries are the last
// T of N tokens; k and v may have fewer heads than q, each then serving as many of them. Sinks as
// in ops/causal_attention; undefined: none.
at::Tensor causal_attention(const at::Tensor& q_BHTK, const at::Tensor& k_BHNK,
                            const at::Tensor& v_BHNV, const CausalMasks& masks, int64_t window = 0,
                            const at::Tensor& sinks_H = {});

}  // namespace attnres
