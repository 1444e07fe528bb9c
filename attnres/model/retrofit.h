// A model with plain residual connections as one with depth attention that computes the same.
//
// With zero pseudo-queries a site reads the mean of its n sources, the residual stream over n, and
// its norm removes the n, except in eps: RMSNorm(h / n; eps / n^2) = RMSNorm(h; eps). So with
// `norm_eps: per_source_count` the new model equals the old one to rounding, and training goes on
// from there. delta_attn_res keeps the stream, and with gates of zero is the old model as it is.
#pragma once

#include <memory>

#include "attnres/model/transformer.h"

namespace attnres {

// Throws Error when the model's connections are not plain residual ones.
void require_residual(const Transformer& model);

// Every parameter is copied; those that are new start where their mechanism says. Equal log-
// probabilities follow for attn_res and block_attn_res with norm_eps per_source_count, and for
// delta_attn_res with gate zero. Throws Error as require_residual.
std::unique_ptr<Transformer> retrofit(const Transformer& residual, const DepthMixing& mixing);

// The same parameters under other settings of depth mixing. Throws Error where the two do not have
// the same parameters.
std::unique_ptr<Transformer> with_depth_mixing(const Transformer& model, const DepthMixing& mixing);

// The largest difference of two models' log-probabilities over `tokens` random tokens. Throws Error
// when it is not finite.
double largest_difference(const Transformer& a, const Transformer& b, int64_t tokens);

}  // namespace attnres
