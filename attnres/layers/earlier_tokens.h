// What attention has in common over the spans of a call: its tokens meet those before them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "attnres/layers/spans.h"

namespace attnres {

// What `attend` gives for queries [B, T, ...] of B sequences and `kept` [B, N, ...] of all their
// tokens, N >= T, up to the last of the queries: [B, T, ...].
using Attend =
    std::function<at::Tensor(const at::Tensor& queries_BT, const std::vector<at::Tensor>& kept_BN)>;

// The same for the sequences of a call, from the queries [T, ...] and `kept` [T, ...] of its tokens
// to [T, ...]. Where the spans are of a pool, it keeps these as the tensors of `layer`, in their
// order, and gives those of earlier tokens.
at::Tensor with_earlier_tokens(const Spans& spans, int layer, const at::Tensor& queries,
                               const std::vector<at::Tensor>& kept, const Attend& attend);

// The same for attention of queries [T, H, K] over keys [T, G, K] and values [T, G, V], where spans
// are so short that each query best reads what it sees by itself (ops/paged_attention): all tokens
// up to its own, or with a window the last `window` of them.
bool reads_pages(const Spans& spans, const at::Tensor& queries);
at::Tensor with_pages(const Spans& spans, int layer, const at::Tensor& queries,
                      const at::Tensor& keys, const at::Tensor& values, int64_t window = 0);
// And over latents [T, C], as paged_latent_attention.
at::Tensor with_latent_pages(const Spans& spans, int layer, const at::Tensor& queries,
                             const at::Tensor& latents, int64_t rank, double scale);

}  // namespace attnres
