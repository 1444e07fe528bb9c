// Test vectors of how fast the states of Kimi Delta Attention decay in Kimi K3, for who reads its
// files: they hold more numbers of A_log than there are heads, as many as a head has channels, and
// the rest of them is zero.
//
//   log_decay[h, c] = b sg(exp(A_log[h]) (gate[h, c] + dt_bias[h, c])),  b = -5
//
//   given    gate               [B, T, H, K]  F_b F_a x
//            parameter.A_log    [K]           of H < K heads, then zeros: as in a file
//            parameter.dt_bias  [H, K]
//            cotangent.log_decay
//   results  log_decay          [B, T, H, K]
//            gradient.NAME      of sum <c, log_decay>, with respect to the given NAME
#pragma once

#include "attnres/conformance/known_mistakes.h"
#include "attnres/conformance/test_vectors.h"
#include "attnres/support/json.h"

namespace attnres {

// As an entry of the file of test vectors.
inline constexpr const char* kDecayEntry = "kimi_k3_decay";

// `mistake` is none, or decay_read_whole: A_log as a number for each channel of every head.
TestVectors make_decay_vectors(at::ScalarType dtype = at::kDouble, Mistake mistake = Mistake::none);
// What explains the entry without any other source.
Json describe_decay_vectors();
const KnownMistake& decay_read_whole();

}  // namespace attnres
