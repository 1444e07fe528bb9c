// Scoring a given sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "attnres/infer/inference_model.h"
#include "attnres/model/transformer.h"

namespace attnres {

// Throws Error on an id outside the model's vocabulary.
void check_ids(const Transformer& model, const std::vector<int32_t>& ids);

// Throws Error unless ids can be scored: at least two, at most `context`, all in the vocabulary.
void check_sequence(const Transformer& model, const std::vector<int32_t>& ids, int64_t context);

// log p(ids[t] | ids[0 .. t-1]) for t = 1 and following, in nats: one number fewer than ids.
// Throws as check_sequence, and Error when a result is not finite.
std::vector<double> score_sequence(const InferenceModel& model, const std::vector<int32_t>& ids,
                                   int64_t context);

}  // namespace attnres
