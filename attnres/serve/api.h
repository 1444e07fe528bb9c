// What the server answers: who may ask for which endpoint (endpoints/), and what is counted and
// logged of every request. docs/serving.md has every field.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "attnres/serve/api_error.h"
#include "attnres/serve/backend.h"
#include "attnres/serve/endpoints/endpoints.h"
#include "attnres/serve/http_server.h"
#include "attnres/serve/settings.h"

namespace attnres {

// What the log says of a request that was answered.
struct AnsweredRequest {
  std::string id, client, method, path;
  int status = 0;
  std::string reason = {};  // "stop", "length"; a word of the error; "gone"
  int64_t prompt_tokens = 0, cached_tokens = 0, new_tokens = 0;
  double seconds = 0, first_token_seconds = 0;
  std::string body = {};  // only where it is to be logged
};

class Api {
 public:
  using Log = std::function<void(const AnsweredRequest&)>;

  // The backend must outlive this. `log` is called from any thread.
  Api(Backend& backend, const ApiSettings& settings, Log log);

  // All from any thread. Of a request without its body: a reply where it may not ask, or there is
  // nothing that it could ask.
  std::optional<HttpReply> refusal(const HttpRequest& head);
  HttpReply operator()(HttpRequest request);
  // To a request that was not read to its end.
  HttpReply answer_unread(const HttpRequest& request, int status, const std::string& code,
                          const std::string& message);

 private:
  endpoints::Endpoint endpoint_for(const HttpRequest& request) const;
  HttpReply error_reply(endpoints::Call& call, const ApiError& error) const;
  HttpReply refuse(const HttpRequest& request, const ApiError& error);
  void finish(const endpoints::Call& call, int status);

  endpoints::Service service_;
  const Log log_;
};

}  // namespace attnres
