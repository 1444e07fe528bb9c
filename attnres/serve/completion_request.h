// Requests of OpenAI's completions and chat completions, as the engine takes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attnres/infer/text_engine.h"
#include "attnres/serve/backend.h"
#include "attnres/serve/json_fields.h"
#include "attnres/serve/settings.h"

namespace attnres {

struct CompletionRequest {
  std::vector<TextRequest> sequences;  // n of each prompt, one after another; with ids
  int64_t prompts = 1;
  bool chat = false, echo = false, stream = false, stream_usage = false;
  int64_t logprobs = -1;  // how many of the likeliest; -1: none are wanted
  bool depth_weights = false;
  bool token_ids = false;        // of prompt and continuation too
  int64_t prompt_logprobs = -1;  // as `logprobs`, of the prompt's tokens, in vLLM's form
};

// Throw ApiError, 400 on what a field may not be and on what the engine does not take, 404 on
// another model's name.
CompletionRequest read_completion(const std::string& body, const Backend& backend,
                                  const ApiLimits& limits);
CompletionRequest read_chat(const std::string& body, const Backend& backend,
                            const ApiLimits& limits);

// What `prompt` or `input` may be: a text, ids, or a list of either, `most` of them. Each as ids:
// of a text as Backend::prompt_ids, or its own alone where no special tokens are added.
std::vector<std::vector<int32_t>> read_prompts(const std::string& field, const Json& value,
                                               int64_t most, const Backend& backend,
                                               bool add_special_tokens = true);

// Throws ApiError 400 where there are more tokens than depth weights are given of.
void check_depth_tokens(const std::string& field, int64_t tokens, const ApiLimits& limits);
// Throws ApiError 400 where the engine does not take the sequence, whose ids come from `field`.
void check_sequence(const std::string& field, const TextRequest& sequence, const Backend& backend);

// Throws ApiError 404 where `model` is given and is another one.
void check_model_name(const JsonFields& fields, const Backend& backend);
[[noreturn]] void refuse_model(const std::string& name, const Backend& backend);

}  // namespace attnres
