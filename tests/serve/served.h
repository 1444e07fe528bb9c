// The bundled model behind an API, without sockets.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "attnres/infer/text_engine.h"
#include "attnres/serve/api.h"
#include "attnres/serve/model_loop.h"
#include "attnres/support/json.h"

namespace attnres::testing {

inline const std::string kModel = ATTNRES_SOURCE_DIR "/models/tiny-shakespeare";

struct Answer {
  int status = 0;
  std::string type, text;
  std::map<std::string, std::string> headers;

  Json json() const { return Json::parse(text); }
  std::string code() const { return json()["error"]["code"]; }
  // The field that is wrong; empty where it is none's fault.
  std::string param() const {
    const Json param = json()["error"]["param"];
    return param.is_null() ? "" : param.get<std::string>();
  }
  // The data of a stream's events.
  std::vector<std::string> events() const {
    std::vector<std::string> events;
    const std::string begin = "data: ", end = "\n\n";
    for (size_t at = 0; at < text.size();) {
      EXPECT_EQ(text.compare(at, begin.size(), begin), 0) << text.substr(at, 80);
      const size_t stop = text.find(end, at);
      EXPECT_NE(stop, std::string::npos);
      events.push_back(text.substr(at + begin.size(), stop - at - begin.size()));
      at = stop + end.size();
    }
    return events;
  }
};

// With all of its stream.
inline Answer answer_of(const HttpReply& reply) {
  Answer answer{reply.status, reply.type, reply.body, reply.headers};
  if (reply.stream) {
    reply.stream([&](std::string_view piece) {
      answer.text += piece;
      return true;
    });
  }
  return answer;
}

class Served {
 public:
  explicit Served(const ApiSettings& settings = {}, int64_t slots = 4,
                  const std::string& model = kModel)
      : engine(model, {.engine = {.sequences = slots}}),
        loop(engine, slots, settings.limits.queue),
        api(loop, settings, [this](const AnsweredRequest& request) { log.push_back(request); }) {}

  Answer ask(const HttpRequest& request) {
    HttpRequest head = request;
    head.body = "";
    const std::optional<HttpReply> refused = api.refusal(head);
    return answer_of(refused ? *refused : api(request));
  }
  Answer post(const std::string& path, const Json& body) {
    return ask({.method = "POST", .path = path, .body = body.dump()});
  }
  Answer get(const std::string& path) { return ask({.method = "GET", .path = path}); }

  std::vector<AnsweredRequest> log;  // of one thread's requests
  TextEngine engine;
  ModelLoop loop;
  Api api;
};

}  // namespace attnres::testing
