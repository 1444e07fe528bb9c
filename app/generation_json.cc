#include "app/generation_json.h"

#include <nlohmann/json.hpp>

namespace attnres {
namespace {

const char* name_of(StopReason reason) {
  switch (reason) {
    case StopReason::end_of_document:
      return "end_of_document";
    case StopReason::max_tokens:
      return "max_tokens";
    case StopReason::context:
      return "context";
    case StopReason::stop_string:
      return "stop_string";
    case StopReason::failed:
      return "failed";
  }
  return "";
}

// A model may embed more tokens than have a text.
Json logprob_json(int32_t id, double logprob, const Tokenizer* tokenizer) {
  Json json = {{"id", id}, {"logprob", logprob}};
  if (tokenizer != nullptr) {
    json["text"] = id < tokenizer->vocab_size() ? tokenizer->token_text(id) : "";
  }
  return json;
}

}  // namespace

Json generation_json(const Generation& generation, const Tokenizer* tokenizer) {
  Json json = {{"tokens", generation.tokens}, {"stop", name_of(generation.reason)}};
  if (generation.logprobs.empty()) return json;
  json["logprobs"] = Json::array();
  for (size_t i = 0; i < generation.logprobs.size(); ++i) {
    const TokenLogprobs& logprobs = generation.logprobs[i];
    Json token = logprob_json(generation.tokens[i], logprobs.chosen, tokenizer);
    token["top"] = Json::array();
    for (const auto& [id, logprob] : logprobs.top) {
      token["top"].push_back(logprob_json(id, logprob, tokenizer));
    }
    json["logprobs"].push_back(token);
  }
  return json;
}

}  // namespace attnres
