// What a mixer costs, found by running it alone, its sublayers left out: its operations are watched
// as torch's profiler does, and every tensor that one reads or writes counts once, broadcast ones
// by what they hold.
#pragma once

#include <cstdint>

#include "attnres/depth/depth_mixing.h"

namespace attnres {

// Per token and sublayer where nothing else is said; the output site counts too.
struct MixingCost {
  int64_t parameters = 0;  // of the whole model, beside the norms of the sublayers' inputs
  // Forward. Products count exactly, every other operation one for each number it reads.
  double multiply_adds = 0;
  // Forward, numbers read and written in units of d: by the operations as they are, with the norm
  // before the sublayer (at least 1d: its input).
  double moved = 0;
  // Numbers in units of d that a training step keeps between forward and backward, with what the
  // sublayer reads, and with its output where the mixing keeps that.
  double kept = 0;
  // What crosses a cut in the middle of the model per token, in units of d, by the mixer's plan:
  // sent once, sent always.
  double sealed = 0, open = 0;
};

MixingCost measure_mixing_cost(const DepthMixing& mixing, const MixerShape& shape);

// MixingCost::moved alone, of a mixer with float32 parameters.
double measure_moved(const DepthMixer& mixer, const MixerShape& shape);

// Seconds that the mixer alone takes here, forward and backward of so many tokens.
double time_mixing(const DepthMixer& mixer, const MixerShape& shape, int64_t tokens);

// MixingCost::kept alone, of a mixer with float32 parameters.
double measure_kept(const DepthMixer& mixer, const MixerShape& shape);

}  // namespace attnres
