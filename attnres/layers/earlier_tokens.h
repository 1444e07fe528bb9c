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

// What is kept of each of a call's tokens as one tensor [T, ..., C]: parts of it, one beside the
// other in the last dimension.
using KeptParts = std::vector<at::Tensor>;

// The same for the sequences of a call, from the queries [T, ...] and `kept` [T, ...] of its tokens
// to [T, ...]. Where the spans are of a pool, it keeps these as the tensors of `layer`, in their
// order, and gives those of earlier tokens.
at::Tensor with_earlier_tokens(const Spans& spans, int layer, const at::Tensor& queries,
                               const std::vector<KeptParts>& kept, const Attend& attend);

// The same for attention of queries [T, H, K] over keys [T, G, K] and values [T, G, V], where spans
// are so short that each query best reads what it sees by itself (ops/paged_attention).
bool reads_pages(const Spans& spans, const at::Tensor& queries);
at::Tensor with_pages(const Spans& spans, int layer, const at::Tensor& queries,
                      const at::Tensor& keys, const at::Tensor& values, int64_t window = 0,
                      const at::Tensor& sinks_H = {});
// And over latents [T, C], as paged_latent_attention.
at::Tensor with_latent_pages(const Spans& spans, int layer, const at::Tensor& queries,
                             const KeptParts& latents, int64_t rank, double scale);

}  // namespace attnres
