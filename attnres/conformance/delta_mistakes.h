// Delta Attention Residuals (delta_attn_res.h) with a mistake, in tensor operations written from
// the equations: what known_mistakes.h has of that mechanism.
#pragma once

#include <memory>
#include <span>

#include "attnres/conformance/known_mistakes.h"
#include "attnres/depth/mechanisms/delta_attn_res.h"

namespace attnres {

// Those that show in what a mixer gives.
std::span<const KnownMistake> delta_mistakes();

// With the parameters that are there.
std::unique_ptr<DepthMixer> make_mistaken_delta(Mistake mistake,
                                                const DeltaAttnResSettings& settings,
                                                const MixerShape& shape,
                                                const ParameterRegistry& parameters);

}  // namespace attnres
