#include "app/generation_json.h"

#include <array>
#include <nlohmann/json.hpp>

namespace attnres {
namespace {

constexpr std::array kStopReasons = {"end_of_document", "max_tokens", "context", "stop_string",
                                     "failed"};  // in the order of StopReason

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
  Json json = {{"tokens", generation.tokens},
               {"stop", kStopReasons.at(static_cast<size_t>(generation.reason))}};
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
