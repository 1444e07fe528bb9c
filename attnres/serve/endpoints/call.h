// What endpoints share: what they answer with, and one request while it is answered.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attnres/infer/text_engine.h"
#include "attnres/serve/backend.h"
#include "attnres/serve/completion_reply.h"
#include "attnres/serve/completion_request.h"
#include "attnres/serve/exchange.h"
#include "attnres/serve/finished_requests.h"
#include "attnres/serve/http_server.h"
#include "attnres/serve/metrics.h"
#include "attnres/serve/settings.h"
#include "attnres/support/json.h"

namespace attnres::endpoints {

inline constexpr int kClientGone = 499;  // for the log: nobody is there to read it

int64_t unix_seconds();

struct Service {
  Backend& backend;
  const ApiSettings settings;
  const int64_t created;  // seconds since 1970
  Metrics metrics = {};
  FinishedRequests finished = {};
};

struct Call {
  using Clock = std::chrono::steady_clock;

  explicit Call(HttpRequest request) : http(std::move(request)) {}
  ~Call() {
    if (exchange) exchange->cancel();
  }

  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin).count(); }

  const HttpRequest http;
  Clock::time_point begin = Clock::now(), deadline = begin;
  std::string id = {};
  int64_t created = unix_seconds();
  int status = 200;         // of a stream, once it has ended
  std::string reason = {};  // how it ended, for the log
  std::optional<Clock::time_point> first_token = {}, last_token = {};
  // For completions alone.
  CompletionRequest request = {};
  std::vector<SequenceReply> replies = {};
  std::shared_ptr<Exchange> exchange = {};
};
using CallPointer = std::shared_ptr<Call>;  // until the answer is sent

HttpReply json_reply(const Json& json);

// Has the call's sequences computed.
void start(Service& service, Call& call, std::vector<TextRequest> sequences);

// What comes next of a sequence that has not failed. `while_silent` is called now and then before.
// Throws ApiError where it has failed, or takes longer than a request may.
Exchange::Heard hear(const Service& service, const Call& call,
                     const std::function<void()>& while_silent = {});

}  // namespace attnres::endpoints
