// What an answer has to be, as OpenAI's API, vLLM and llama.cpp's server ask for it.
#pragma once

#include "attnres/infer/text_engine.h"
#include "attnres/serve/backend.h"
#include "attnres/serve/json_fields.h"

namespace attnres {

// Gives a request what its answer is kept to, after the thought that it begins within, if it does.
// Reads response_format, structured_outputs, guided_json, guided_regex, guided_choice,
// guided_grammar, grammar and json_schema. Throws ApiError 400 on two of them, and on what answers
// cannot be kept to.
void read_answer_format(const JsonFields& fields, const Backend& backend, TextRequest* request);

}  // namespace attnres
