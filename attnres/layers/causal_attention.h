// Softmax attention in which a token sees itself and earlier tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace attnres {

// [tokens, keys] of bool: whether the call's t-th token, which is the (keys - tokens + t)-th of its
// sequence, may see a key: its own or an earlier one, with a window one of the last `window`.
at::Tensor causal_mask(int64_t tokens, int64_t keys, int64_t window = 0);

// [B, H, T, V]: softmax(q k^T / sqrt(K)) v over the keys that a query may see. Queries are the last
// T of N tokens; k and v may have fewer heads than q, each then serving as many of them.
at::Tensor causal_attention(const at::Tensor& q_BHTK, const at::Tensor& k_BHNK,
                            const at::Tensor& v_BHNV, int64_t window = 0);

}  // namespace attnres
