// What the server answers: OpenAI's endpoints, and /v1/depth. docs/serving.md has every field.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "attnres/infer/text_engine.h"
#include "attnres/serve/api_error.h"
#include "attnres/serve/completion_request.h"
#include "attnres/serve/http_server.h"
#include "attnres/serve/metrics.h"
#include "attnres/serve/model_loop.h"
#include "attnres/serve/settings.h"
#include "attnres/support/json.h"

namespace attnres {

// Of a request that was answered, for the log.
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

  // The engine's thread is the loop's; both must outlive this. `log` is called from any thread.
  Api(const TextEngine& engine, ModelLoop& loop, int64_t slots, const ApiSettings& settings,
      Log log);

  // All from any thread. Of a request without its body: a reply where it may not ask, or there is
  // nothing that it could ask.
  std::optional<HttpReply> refusal(const HttpRequest& head);
  HttpReply operator()(HttpRequest request);
  // To a request that was not read to its end.
  HttpReply answer_unread(const HttpRequest& request, int status, const std::string& code,
                          const std::string& message);

 private:
  struct Call;  // one request while it is answered
  using CallPointer = std::shared_ptr<Call>;
  using Endpoint = HttpReply (Api::*)(const CallPointer&);

  static const std::map<std::string, std::map<std::string, Endpoint>>& endpoints();
  Endpoint endpoint_for(const HttpRequest& request) const;
  HttpReply error_reply(Call& call, const ApiError& error) const;

  HttpReply completions(const CallPointer& call);
  HttpReply chat_completions(const CallPointer& call);
  HttpReply models(const CallPointer& call);
  HttpReply model(const CallPointer& call);
  HttpReply embeddings(const CallPointer& call);
  HttpReply depth(const CallPointer& call);
  HttpReply tokenize(const CallPointer& call);
  HttpReply detokenize(const CallPointer& call);
  HttpReply tokenizer_info(const CallPointer& call);
  HttpReply show_page(const CallPointer& call);
  HttpReply describe(const CallPointer& call);
  HttpReply health(const CallPointer& call);
  HttpReply metrics(const CallPointer& call);

  HttpReply complete(const CallPointer& call, CompletionRequest request);
  HttpReply whole_reply(Call& call);
  void stream_reply(Call& call, const Send& send);
  Exchange::Heard hear(const Call& call, const std::function<void()>& while_silent = {}) const;
  template <class F>
  void hear_all(Call& call, const F& on_piece, const std::function<void()>& while_silent = {});
  std::shared_ptr<Exchange> start(const Call& call, std::vector<TextRequest> sequences);
  Json model_json() const;
  TextRequest sequence_for_depth(const HttpRequest& request);
  void finish(const Call& call, int status);
  void remember(const Call& call);

  const TextEngine& engine_;
  ModelLoop& loop_;
  const int64_t slots_;
  const ApiSettings settings_;
  const Log log_;
  const int64_t created_;  // seconds since 1970
  Metrics metrics_;

  std::mutex mutex_;                                      // of what follows
  std::map<std::string, std::vector<int32_t>> finished_;  // ids of a request's first sequence
  std::deque<std::string> finished_order_;
};

}  // namespace attnres
