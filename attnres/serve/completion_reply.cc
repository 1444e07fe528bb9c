#include "attnres/serve/completion_reply.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "attnres/chat/reply_reader.h"
#include "attnres/serve/random_id.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace {

bool is_whole_text(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    if (step.kind != Utf8Step::Kind::character) return false;
    bytes.remove_prefix(step.bytes);
  }
  return true;
}

// As JSON takes it: what is no character is given as U+FFFD.
std::string shown_token(const std::string& bytes) {
  return is_whole_text(bytes) ? bytes : "\uFFFD";
}

Json bytes_json(const std::string& bytes) {
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return list;
}

}  // namespace

std::string token_name(const std::string& bytes) {
  if (is_whole_text(bytes)) return bytes;
  std::string name = "bytes:";
  for (const char byte : bytes) {
    name += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return name;
}

std::string finish_reason(StopReason reason) {
  return reason == StopReason::max_tokens || reason == StopReason::context ? "length" : "stop";
}

Json depth_json(const TokensDepthWeights& depth, const std::vector<int32_t>& ids,
                const Backend& backend) {
  Json tokens = Json::array();
  const bool named = !backend.model().tokenizer.empty();
  for (size_t i = 0; i < depth.weights.size(); ++i) {
    const int32_t id = ids.at(depth.first + i);
    Json token = {{"id", id}};
    if (named) token["text"] = shown_token(backend.token_text(id));
    tokens.push_back(std::move(token));
  }
  return {{"position", depth.first}, {"tokens", std::move(tokens)}, {"weights", depth.weights}};
}

void ReplyParts::add(const ReplyParts& more) {
  thought += more.thought;
  text += more.text;
  for (const auto& [number, call] : more.calls) {
    if (calls.emplace(number, call).second) continue;
    Json& arguments = calls.at(number)["function"]["arguments"];
    arguments.get_ref<std::string&>() +=
        call["function"]["arguments"].get_ref<const std::string&>();
  }
}

SequenceReply::SequenceReply(const CompletionRequest& request, size_t index, const Backend& backend)
    : request_(request),
      index_(index),
      backend_(backend),
      ids_(request.sequences[index].ids),
      prompt_tokens_(static_cast<int64_t>(ids_.size())),
      logprobs_(no_logprobs()) {}

Json SequenceReply::no_logprobs() const {
  if (request_.logprobs < 0) return nullptr;
  if (request_.chat) return {{"content", Json::array()}};
  return {{"tokens", Json::array()},
          {"token_logprobs", Json::array()},
          {"top_logprobs", Json::array()},
          {"text_offset", Json::array()}};
}

std::string SequenceReply::text_of(int32_t token) const {
  return backend_.model().tokenizer.empty() ? std::to_string(token) : backend_.token_text(token);
}

void SequenceReply::add_token(int32_t id, const TokenLogprobs* logprobs, Json* list) {
  const std::string bytes = text_of(id);
  if (request_.chat && logprobs != nullptr) {
    Json top = Json::array();
    for (const TokenLogprob& likely : logprobs->top) {
      const std::string text = text_of(likely.id);
      top.push_back(
          {{"token", token_name(text)}, {"logprob", likely.logprob}, {"bytes", bytes_json(text)}});
    }
    (*list)["content"].push_back({{"token", token_name(bytes)},
                                  {"logprob", logprobs->chosen},
                                  {"bytes", bytes_json(bytes)},
                                  {"top_logprobs", std::move(top)}});
    return;
  }
  Json top;
  if (logprobs != nullptr && request_.logprobs > 0) {
    top = Json::object();
    // Keeps the likeliest of tokens that look alike, which comes first.
    for (const TokenLogprob& likely : logprobs->top) {
      top.emplace(token_name(text_of(likely.id)), likely.logprob);
    }
    top.emplace(token_name(bytes), logprobs->chosen);
  }
  (*list)["tokens"].push_back(token_name(bytes));
  (*list)["token_logprobs"].push_back(logprobs == nullptr ? Json() : Json(logprobs->chosen));
  (*list)["top_logprobs"].push_back(std::move(top));
  (*list)["text_offset"].push_back(characters_);
  // The first byte of a character counts it.
  for (const char byte : bytes) characters_ += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

// The prompt's tokens, of which the first has no probability.
void SequenceReply::add_prompt(const TextUpdate& update, Json* list) {
  for (int64_t i = 0; i < prompt_tokens_; ++i) {
    add_token(ids_[i], i == 0 ? nullptr : &update.prompt_logprobs.at(i - 1), list);
  }
}

void SequenceReply::join_logprobs(const Json& list) {
  if (list.is_null()) return;
  for (const auto& [name, values] : list.items()) {
    Json& all = logprobs_[name];
    all.insert(all.end(), values.begin(), values.end());
  }
}

ReplyParts SequenceReply::parts_of(const TextUpdate& update) const {
  if (!request_.chat) return {.text = update.text};
  ReplyParts parts;
  for (const ReplyPiece& piece : update.pieces) {
    switch (piece.kind) {
      case ReplyPiece::Kind::thought:
        parts.thought += piece.text;
        break;
      case ReplyPiece::Kind::answer:
        parts.text += piece.text;
        break;
      case ReplyPiece::Kind::call:
        parts.add({.calls = {{piece.call, tool_call(piece, random_id("call_"))}}});
        break;
      case ReplyPiece::Kind::arguments:
        parts.add({.calls = {{piece.call, {{"function", {{"arguments", piece.text}}}}}}});
        break;
    }
  }
  return parts;
}

Json SequenceReply::add(const TextUpdate& update) {
  ReplyParts parts = parts_of(update);
  Json logprobs = no_logprobs();
  if (!begun_) {
    cached_ = update.shared_tokens;
    if (request_.prompt_logprobs >= 0) prompt_logprobs_ = update.prompt_logprobs;
    if (request_.echo) {
      if (!backend_.model().tokenizer.empty()) parts.text.insert(0, backend_.decode(ids_));
      if (request_.logprobs >= 0) add_prompt(update, &logprobs);
    }
  }
  if (update.token) {
    ids_.push_back(*update.token);
    if (request_.logprobs >= 0) add_token(*update.token, &update.logprobs.value(), &logprobs);
  }
  const TokensDepthWeights& read = update.depth;
  if (!read.weights.empty()) {
    if (depth_.weights.empty()) depth_.first = read.first;
    depth_.weights.insert(depth_.weights.end(), read.weights.begin(), read.weights.end());
  }
  parts_.add(parts);
  if (update.stopped) {
    finish_ = finish_reason(*update.stopped);
    if (finish_ == "stop" && !parts_.calls.empty()) finish_ = "tool_calls";
  }
  join_logprobs(logprobs);
  std::vector<int32_t> ids;
  if (update.token) ids = {*update.token};
  Json piece = choice(parts, logprobs, ids, /*streamed=*/true);
  begun_ = true;
  return piece;
}

Json SequenceReply::of_prompt() const {
  Json of_prompt = Json::object();
  if (request_.token_ids) {
    of_prompt["prompt_token_ids"] =
        std::vector<int32_t>(ids_.begin(), ids_.begin() + prompt_tokens_);
  }
  if (request_.prompt_logprobs < 0) return of_prompt;
  Json list = Json::array({nullptr});
  for (size_t i = 0; i < prompt_logprobs_.size(); ++i) {
    Json of_token = Json::object();
    const auto add = [&](int32_t id, double logprob) {
      of_token.emplace(std::to_string(id),
                       Json{{"logprob", logprob}, {"decoded_token", token_name(text_of(id))}});
    };
    add(ids_[i + 1], prompt_logprobs_[i].chosen);
    for (const TokenLogprob& likely : prompt_logprobs_[i].top) add(likely.id, likely.logprob);
    list.push_back(std::move(of_token));
  }
  of_prompt["prompt_logprobs"] = std::move(list);
  return of_prompt;
}

Json SequenceReply::choice(const ReplyParts& parts, const Json& logprobs,
                           const std::vector<int32_t>& ids, bool streamed) const {
  Json choice = {{"index", index_}};
  if (!request_.chat) {
    choice["text"] = parts.text;
  } else {
    Json& message = choice[streamed ? "delta" : "message"] = Json::object();
    const bool more = !parts.thought.empty() || !parts.calls.empty();
    if (!streamed || !begun_) message["role"] = "assistant";
    if (!parts.thought.empty()) message["reasoning_content"] = parts.thought;
    if (!streamed && parts.text.empty() && !parts.calls.empty()) {
      message["content"] = nullptr;
    } else if (!streamed || !parts.text.empty() || !more) {
      message["content"] = parts.text;
    }
    if (!streamed) message["refusal"] = nullptr;
    for (const auto& [number, call] : parts.calls) {
      Json listed = call;
      if (streamed) listed["index"] = number;
      message["tool_calls"].push_back(std::move(listed));
    }
  }
  choice["logprobs"] = logprobs;
  choice["finish_reason"] = finish_.empty() ? Json() : Json(finish_);
  if (request_.token_ids) choice["token_ids"] = ids;
  if (!request_.chat && (!streamed || !begun_)) choice.update(of_prompt());
  return choice;
}

Json SequenceReply::whole() const {
  const std::vector<int32_t> ids(ids_.begin() + prompt_tokens_, ids_.end());
  return choice(parts_, logprobs_, ids, /*streamed=*/false);
}

Json SequenceReply::take_depth() {
  if (depth_.weights.empty()) return nullptr;
  Json json = depth_json(depth_, ids_, backend_);
  depth_ = {};
  return json;
}

}  // namespace attnres
