// What a request says of a conversation, as the model's chat template is given it.
#pragma once

#include "attnres/infer/text_engine.h"
#include "attnres/serve/backend.h"
#include "attnres/serve/json_fields.h"

namespace attnres {

// `messages` with `tools`, `tool_choice`, `documents`, `chat_template_kwargs`, `reasoning_effort`,
// `add_generation_prompt` and `continue_final_message`. Throws ApiError 400 on what they may not
// be, and on what the template does not take.
//
// Of a message the template is given all fields, its `reasoning` or `thinking` as
// `reasoning_content` too, but for:
// - the arguments of `tool_calls`: the object that their JSON says, which most templates want, or
//   that JSON as it came where the template does not take objects;
// - an empty list of `tool_calls`, and null, which is no field, or an empty content.
// `reasoning_effort` becomes the variables that the template reads of `reasoning_effort`,
// `thinking_effort`, `enable_thinking` and `thinking`, the latter two as whether it is not "none";
// those of `chat_template_kwargs` come before it.
TextRequest read_conversation(const JsonFields& fields, const Backend& backend);
// Throws ApiError 400 on what it would refuse beside the messages.
void check_template_fields(const JsonFields& fields, const Backend& backend);

}  // namespace attnres
