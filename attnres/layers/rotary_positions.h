// Rotary positions of a call's tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include "attnres/layers/spans.h"
#include "attnres/ops/rotary/rotary.h"

namespace attnres {

// Of the positions of the spans' tokens; where all spans are alike, of one span, whose rows repeat.
RotaryTable rotary_of(const Spans& spans, const RotaryFrequencies& frequencies,
                      at::ScalarType dtype);

// x [T, H, K] of those tokens, turned.
at::Tensor turned(const at::Tensor& x_THK, const RotaryTable& table);

}  // namespace attnres
