#include "attnres/serve/endpoints/call.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attnres/serve/api_error.h"

namespace attnres::endpoints {

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

HttpReply json_reply(const Json& json) {
  return {.body = one_line_of(json)};
}

void start(Service& service, Call& call, std::vector<TextRequest> sequences) {
  call.exchange = service.backend.submit(std::move(sequences), call.http.client, call.http.gone);
}

Exchange::Heard hear(const Service& service, const Call& call,
                     const std::function<void()>& while_silent) {
  const auto silence = std::chrono::duration_cast<Call::Clock::duration>(
      std::chrono::duration<double>(service.settings.limits.comment_seconds));
  std::optional<Exchange::Heard> heard;
  while (true) {
    // Before what waits to be told, too: who reads slowly has no longer than others.
    const auto now = Call::Clock::now();
    if (now >= call.deadline) {
      throw ApiError(504, "timeout",
                     fmt::format("the request took longer than {} s",
                                 service.settings.limits.request_seconds));
    }
    const auto until = while_silent ? std::min(call.deadline, now + silence) : call.deadline;
    heard = call.exchange->next(until);
    if (heard) break;
    if (while_silent) while_silent();
  }
  if (heard->update.stopped != StopReason::failed) return *std::move(heard);
  const std::string& error = heard->update.error;
  if (call.http.gone && call.http.gone()) throw ApiError(kClientGone, "gone", error);
  if (heard->shuts_down) throw ApiError(503, "shutting_down", error);
  throw ApiError(500, "failed", error);
}

}  // namespace attnres::endpoints
