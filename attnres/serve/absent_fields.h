// Fields that OpenAI's API, vLLM and llama.cpp's server have and this one has not, and that would
// change the answer: an answer to another question than was asked is worse than none.
#pragma once

#include "attnres/serve/json_fields.h"

namespace attnres {

// Throw ApiError 400 "unsupported", naming the field, unless its value changes nothing.
void refuse_absent_of_completions(const JsonFields& fields);
void refuse_absent_of_chat(const JsonFields& fields);
void refuse_absent_of_tokenize(const JsonFields& fields);
// Of a conversation, around which the template has put what belongs there.
void refuse_special_tokens(const JsonFields& fields);
// The same for one of the messages, an object.
void refuse_absent_of_message(const Json& message);

}  // namespace attnres
