#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "attnres/serve/api_error.h"
#include "attnres/serve/endpoints/endpoints.h"
#include "attnres/serve/random_id.h"

namespace attnres::endpoints {
namespace {

// Calls on_piece(reply, choice) for what each sequence is given, until all have ended.
template <class F>
void hear_all(Service& service, Call& call, const F& on_piece,
              const std::function<void()>& while_silent = {}) {
  size_t left = call.replies.size();
  while (left > 0) {
    const Exchange::Heard heard = hear(service, call, while_silent);
    if (heard.update.token) {
      const auto now = Call::Clock::now();
      if (!call.first_token) {
        call.first_token = now;
        service.metrics.add_first_token(call.seconds());
      } else {
        service.metrics.add_token(std::chrono::duration<double>(now - *call.last_token).count());
      }
      call.last_token = now;
    }
    SequenceReply& reply = call.replies[heard.sequence];
    const Json choice = reply.add(heard.update);
    if (reply.ended()) --left;
    on_piece(reply, choice);
  }
}

Json usage_json(const CompletionRequest& request, const std::vector<SequenceReply>& replies) {
  const size_t n = replies.size() / request.prompts;
  int64_t prompt = 0, cached = 0, generated = 0;
  for (size_t i = 0; i < replies.size(); ++i) {
    if (i % n == 0) {
      prompt += replies[i].prompt_tokens();
      cached += replies[i].cached_tokens();
    }
    generated += replies[i].new_tokens();
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", generated},
          {"total_tokens", prompt + generated},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

HttpReply whole_reply(Service& service, Call& call) {
  hear_all(service, call, [](const SequenceReply&, const Json&) {});
  Json choices = Json::array();
  for (SequenceReply& reply : call.replies) {
    Json choice = reply.whole();
    if (Json depth = reply.take_depth(); !depth.is_null()) choice["depth"] = std::move(depth);
    choices.push_back(std::move(choice));
  }
  service.finished.add(call.id, call.replies[0].ids());
  call.reason = call.replies[0].finish();
  Json reply = {{"id", call.id},
                {"object", call.request.chat ? "chat.completion" : "text_completion"},
                {"created", call.created},
                {"model", service.backend.model().name},
                {"choices", std::move(choices)},
                {"usage", usage_json(call.request, call.replies)}};
  if (call.request.chat) reply.update(call.replies[0].of_prompt());
  return json_reply(reply);
}

void stream_reply(Service& service, Call& call, const Send& send) {
  const CompletionRequest& request = call.request;
  struct Gone {};
  const auto send_or_end = [&](const std::string& text) {
    if (!send(text)) throw Gone();
  };
  const auto event = [&](const Json& data) { send_or_end("data: " + one_line_of(data) + "\n\n"); };
  const Json head = {{"id", call.id},
                     {"object", request.chat ? "chat.completion.chunk" : "text_completion"},
                     {"created", call.created},
                     {"model", service.backend.model().name}};
  const auto chunk = [&](Json choices) {
    Json data = head;
    data["choices"] = std::move(choices);
    if (request.stream_usage) data["usage"] = nullptr;
    return data;
  };
  const auto end = [&](int status, const std::string& reason) {
    call.reason = reason;
    call.status = status;
  };
  const auto fail = [&](const ApiError& error) {
    send("data: " + error_body(error) + "\n\n");
    end(error.status, error.code);
  };
  bool first = true;
  const auto on_piece = [&](SequenceReply& reply, const Json& choice) {
    Json data = chunk(Json::array({choice}));
    if (request.chat && std::exchange(first, false)) data.update(reply.of_prompt());
    if (Json depth = reply.take_depth(); !depth.is_null()) data["depth"] = std::move(depth);
    event(data);
  };
  try {
    // Clients and proxies end connections of which nothing comes; comments mean nothing to them.
    hear_all(service, call, on_piece, [&] { send_or_end(": still at work\n\n"); });
    if (request.stream_usage) {
      Json data = chunk(Json::array());
      data["usage"] = usage_json(request, call.replies);
      event(data);
    }
    service.finished.add(call.id, call.replies[0].ids());
    send_or_end("data: [DONE]\n\n");
    return end(200, call.replies[0].finish());
  } catch (const Gone&) {
    return end(kClientGone, "gone");
  } catch (const ApiError& e) {
    fail(e);
  } catch (const std::exception& e) {
    fail(failure_of(e));
  }
}

HttpReply complete(Service& service, const CallPointer& call, CompletionRequest request) {
  call->request = std::move(request);
  start(service, *call, call->request.sequences);
  call->id = random_id(call->request.chat ? "chatcmpl-" : "cmpl-");
  for (size_t i = 0; i < call->request.sequences.size(); ++i) {
    call->replies.emplace_back(call->request, i, service.backend);
  }
  if (!call->request.stream) return whole_reply(service, *call);
  return {.type = "text/event-stream",
          .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}},
          .stream = [&service, call](const Send& send) { stream_reply(service, *call, send); }};
}

}  // namespace

HttpReply completions(Service& service, const CallPointer& call) {
  return complete(service, call,
                  read_completion(call->http.body, service.backend, service.settings.limits));
}

HttpReply chat_completions(Service& service, const CallPointer& call) {
  return complete(service, call,
                  read_chat(call->http.body, service.backend, service.settings.limits));
}

}  // namespace attnres::endpoints
