// Which keys the queries of a call may see when earlier tokens are cached.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace attnres {

// [tokens, keys] of bool: whether the call's t-th token, which is the (keys - tokens + t)-th of its
// sequence, may see a key.
at::Tensor causal_mask(int64_t tokens, int64_t keys);

}  // namespace attnres
