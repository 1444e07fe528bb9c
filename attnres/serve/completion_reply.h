// Answers of OpenAI's completions and chat completions, whole or in pieces of a stream.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "attnres/infer/text_engine.h"
#include "attnres/serve/backend.h"
#include "attnres/serve/completion_request.h"
#include "attnres/support/json.h"

namespace attnres {

// The text of one token where it is whole characters, else its bytes as OpenAI writes them:
// "bytes:\xe2\x80".
std::string token_name(const std::string& bytes);

// What was answered, or a part of it. Of what is no conversation, `text` is all.
struct ReplyParts {
  std::string thought = {}, text = {};
  // By their numbers: {"id", "type", "function": {"name", "arguments"}}; of a part that only goes
  // on with a call, its arguments alone.
  std::map<int64_t, Json> calls = {};

  void add(const ReplyParts& more);
};

// "stop", or "length" where tokens or context were at their end.
std::string finish_reason(StopReason reason);

// The depth weights of some tokens of a sequence: {"position", "tokens", "weights"}. `ids` is all
// of the sequence.
Json depth_json(const TokensDepthWeights& depth, const std::vector<int32_t>& ids,
                const Backend& backend);

// What one sequence was answered, as it comes.
class SequenceReply {
 public:
  // Both must outlive it.
  SequenceReply(const CompletionRequest& request, size_t index, const Backend& backend);

  // Takes what a step gave a sequence that has not failed, and returns the choice with just that:
  // of a stream, "delta" in the place of "message".
  Json add(const TextUpdate& update);
  // The choice with all of it, after its end.
  Json whole() const;
  // What was asked of the prompt, in vLLM's form: {"prompt_token_ids", "prompt_logprobs"} of these
  // that were; empty where nothing was. Choices of completions have it already.
  Json of_prompt() const;
  // Depth weights of the tokens read since the last call; null where none were.
  Json take_depth();

  bool ended() const { return !finish_.empty(); }
  const std::string& finish() const { return finish_; }     // finish_reason; empty before the end
  const std::vector<int32_t>& ids() const { return ids_; }  // prompt and continuation
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t new_tokens() const { return static_cast<int64_t>(ids_.size()) - prompt_tokens_; }
  int64_t cached_tokens() const { return cached_; }

 private:
  Json choice(const ReplyParts& parts, const Json& logprobs, const std::vector<int32_t>& ids,
              bool streamed) const;
  ReplyParts parts_of(const TextUpdate& update) const;
  std::string text_of(int32_t token) const;
  void add_token(int32_t id, const TokenLogprobs* logprobs, Json* list);
  void add_prompt(const TextUpdate& update, Json* list);
  Json no_logprobs() const;
  void join_logprobs(const Json& list);

  const CompletionRequest& request_;
  size_t index_;
  const Backend& backend_;
  std::vector<int32_t> ids_;
  int64_t prompt_tokens_, cached_ = 0;
  bool begun_ = false;
  ReplyParts parts_;
  std::string finish_;
  std::vector<TokenLogprobs> prompt_logprobs_;
  int64_t characters_ = 0;  // of the tokens in `logprobs`, before the next
  Json logprobs_;
  TokensDepthWeights depth_;  // since it was last taken
};

}  // namespace attnres
