// What came of a prompt, as JSON.
#pragma once

#include "attnres/infer/generate.h"
#include "attnres/support/json.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// "tokens", "stop", and "logprobs" where there are any: of each token its id, its log-probability,
// its text where there is a tokenizer, and the likeliest in its place.
Json generation_json(const Generation& generation, const Tokenizer* tokenizer);

}  // namespace attnres
