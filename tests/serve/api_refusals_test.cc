// What is refused, to whom, and what is said then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <future>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "attnres/serve/api.h"
#include "attnres/serve/api_error.h"
#include "attnres/serve/equal_keys.h"
#include "attnres/support/machine.h"
#include "tests/serve/served.h"

namespace attnres::api_refusals_test {
namespace {

using testing::Answer;
using ::testing::HasSubstr;
using testing::Served;

TEST(ApiRefusals, RefusesWhatItCannotDo) {
  Served served;
  const auto text = [&] {
    const Json body = {{"prompt", "KING"}, {"temperature", 0}, {"max_tokens", 5}};
    return served.post("/v1/completions", body).json()["choices"][0]["text"];
  };
  const Json before = text();
  struct Case {
    const char* path;
    std::string body;
    int status;
    const char* code;
    const char* message;
    std::string param = {};
  };
  for (const Case& c : std::vector<Case>{
           {"/v1/completions", "{", 400, "invalid_json", "line 1"},
           {"/v1/completions", "[]", 400, "invalid_value", "a JSON object"},
           {"/v1/completions", "{}", 400, "invalid_value", "prompt: expected a text", "prompt"},
           {"/v1/completions", R"({"prompt": [1, "a"]})", 400, "invalid_value", "prompt", "prompt"},
           {"/v1/completions", R"({"prompt": [999]})", 400, "invalid_value", "999", "prompt"},
           {"/v1/completions", R"({"prompt": "a", "temperature": -1})", 400, "invalid_value",
            "temperature: expected", "temperature"},
           {"/v1/completions", R"({"prompt": "a", "temperature": "hot"})", 400, "invalid_value",
            "temperature: expected a number", "temperature"},
           {"/v1/completions", R"({"prompt": "a", "top_p": 1.5})", 400, "invalid_value",
            "top_p: expected", "top_p"},
           {"/v1/completions", R"({"prompt": "a", "max_tokens": -1})", 400, "invalid_value",
            "max_tokens", "max_tokens"},
           {"/v1/completions", R"({"prompt": "a", "max_tokens": 1.5})", 400, "invalid_value",
            "max_tokens", "max_tokens"},
           {"/v1/completions", R"({"prompt": "a", "n": 1000})", 400, "invalid_value", "n: expected",
            "n"},
           {"/v1/completions", R"({"prompt": "a", "logprobs": 21})", 400, "invalid_value",
            "logprobs", "logprobs"},
           {"/v1/completions", R"({"prompt": "a", "stop": [1]})", 400, "invalid_value", "stop",
            "stop"},
           {"/v1/completions",
            R"({"prompt": "a", "stop": "\u0000)" + std::string(1024, 'a') + "\"}", 400,
            "invalid_value", "stop: expected texts of 1024 bytes", "stop"},
           {"/v1/completions", R"({"prompt": "a", "logit_bias": {"x": 1}})", 400, "invalid_value",
            "logit_bias", "logit_bias"},
           {"/v1/completions", R"({"prompt": "a", "logit_bias": {"400": 1}})", 400, "invalid_value",
            "400", "logit_bias"},
           {"/v1/completions", R"({"prompt": "a", "suffix": "b"})", 400, "unsupported", "suffix",
            "suffix"},
           {"/v1/completions", R"({"prompt": "a", "best_of": 2})", 400, "unsupported", "best_of",
            "best_of"},
           {"/v1/completions", R"({"prompt": "a", "stream_options": {"include_usage": 1}})", 400,
            "invalid_value", "include_usage", "stream_options.include_usage"},
           {"/v1/completions", R"({"prompt": "a", "model": "gpt"})", 404, "model_not_found",
            "tiny-shakespeare", "model"},
           {"/v1/completions", R"({"prompt": ")" + std::string(300, 'a') + "\"}", 400,
            "context_length_exceeded", "256 tokens", "prompt"},
           {"/v1/chat/completions",
            R"({"messages": [{"role": "user", "content": ")" + std::string(300, 'a') + "\"}]}", 400,
            "context_length_exceeded", "256 tokens", "messages"},
           {"/v1/chat/completions", R"({"messages": []})", 400, "invalid_value", "messages",
            "messages"},
           {"/v1/chat/completions", R"({"messages": [{"role": "judge", "content": "a"}]})", 400,
            "invalid_value", "judge", "messages"},
           {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": 1}]})", 400,
            "invalid_value", "content", "messages"},
           {"/v1/embeddings", R"({"input": "a", "dimensions": 3})", 400, "unsupported",
            "dimensions", "dimensions"},
           {"/v1/embeddings", R"({"input": ")" + std::string(300, 'a') + "\"}", 400,
            "context_length_exceeded", "256 tokens", "input"},
           {"/v1/depth", R"({"request": "cmpl-1"})", 404, "request_not_found", "cmpl-1", "request"},
           {"/v1/depth", R"({"ids": [999]})", 400, "invalid_value", "999", "ids"},
           {"/detokenize", R"({"tokens": [256]})", 400, "invalid_value", "256", "tokens"},
           {"/v1/engines", "{}", 404, "not_found", "/v1/engines"},
           {"/v1/models", "{}", 405, "method_not_allowed", "GET"}}) {
    const Answer answer = served.ask({.method = "POST", .path = c.path, .body = c.body});
    EXPECT_EQ(answer.status, c.status) << c.path << " " << c.body << " " << answer.text;
    EXPECT_EQ(answer.code(), c.code) << c.body;
    EXPECT_EQ(answer.param(), c.param) << c.body;
    EXPECT_THAT(answer.json()["error"]["message"].get<std::string>(), HasSubstr(c.message));
    EXPECT_TRUE(answer.json()["error"].contains("type"));
  }
  EXPECT_EQ(text(), before);  // it goes on
}

// An answer to another question than was asked is worse than none.
TEST(ApiRefusals, RefusesFieldsThatWouldChangeTheAnswer) {
  Served served;
  struct Kind {
    std::string path;
    Json body;
    std::vector<const char*> refused, taken;
  };
  const std::vector<const char*> refused = {R"({"functions": [{"name": "f"}]})",
                                            R"({"reasoning_effort": "high"})",
                                            R"({"repeat_penalty": 1.1})",
                                            R"({"mirostat": 2})",
                                            R"({"use_beam_search": true})",
                                            R"({"truncate_prompt_tokens": 10})",
                                            R"({"best_of": 3})",
                                            R"({"suffix": "b"})"};
  // What means nothing, and what changes nothing.
  const std::vector<const char*> taken = {R"({"response_format": {"type": "text"}})",
                                          R"({"tools": []})",
                                          R"({"tool_choice": "auto"})",
                                          R"({"reasoning_effort": null})",
                                          R"({"min_tokens": 0})",
                                          R"({"ignore_eos": false})",
                                          R"({"repeat_penalty": 1.0})",
                                          R"({"best_of": 1})",
                                          R"({"user": "me"})",
                                          R"({"parallel_tool_calls": true})"};
  const Kind completions = {
      "/v1/completions",
      {{"prompt", "a"}, {"max_tokens", 2}, {"temperature", 0}},
      {R"({"max_completion_tokens": 5})", R"({"messages": [{"role": "user"}]})",
       R"({"top_logprobs": 2})", R"({"tools": [{"type": "function", "function": {"name": "f"}}]})",
       R"({"documents": [{"text": "d"}]})", R"({"continue_final_message": true})",
       R"({"chat_template_kwargs": {"thinking": true}})"},
      {R"({"add_special_tokens": true})"}};
  const Kind chat = {
      "/v1/chat/completions",
      {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"max_tokens", 2}, {"temperature", 0}},
      {R"({"prompt": "b"})", R"({"echo": true})", R"({"chat_template": "{{ x }}"})",
       R"({"add_special_tokens": true})"},
      {R"({"echo": false})", R"({"add_generation_prompt": true})",
       R"({"chat_template_kwargs": {}})", R"({"add_special_tokens": false})"}};
  for (const Kind& kind : {completions, chat}) {
    const auto ask = [&](const char* fields) {
      Json body = kind.body;
      body.update(Json::parse(fields));
      return served.post(kind.path, body);
    };
    for (const auto& list : {refused, kind.refused}) {
      for (const char* fields : list) {
        const Answer answer = ask(fields);
        EXPECT_EQ(answer.status, 400) << kind.path << fields;
        EXPECT_EQ(answer.code(), "unsupported") << kind.path << fields;
        EXPECT_EQ(answer.param(), Json::parse(fields).begin().key());
      }
    }
    const Json plain = ask("{}").json()["choices"];
    for (const auto& list : {taken, kind.taken}) {
      for (const char* fields : list) {
        const Answer answer = ask(fields);
        ASSERT_EQ(answer.status, 200) << kind.path << fields << answer.text;
        EXPECT_EQ(answer.json()["choices"], plain) << kind.path << fields;
      }
    }
  }
}

// What a template would write of a message.
TEST(ApiRefusals, RefusesFieldsOfMessages) {
  Served served;
  const auto ask = [&](const std::string& path, const char* fields) {
    Json message = {{"role", "user"}, {"content", "a"}};
    message.update(Json::parse(fields));
    return served.post(path, {{"messages", Json::array({message})}, {"max_tokens", 1}});
  };
  for (const std::string path : {"/v1/chat/completions", "/tokenize"}) {
    for (const char* fields : {R"({"function_call": {"name": "f"}})", R"({"audio": {"id": "1"}})",
                               R"({"prefix": true})"}) {
      const Answer answer = ask(path, fields);
      EXPECT_EQ(answer.status, 400) << fields;
      EXPECT_EQ(answer.code(), "unsupported") << fields;
      EXPECT_EQ(answer.param(), "messages");
      EXPECT_THAT(answer.text, HasSubstr(Json::parse(fields).begin().key()));
    }
    for (const char* fields : {R"({"name": null})", R"({"tool_calls": []})", R"({"id": "x"})"}) {
      EXPECT_EQ(ask(path, fields).status, 200) << path << fields;
    }
  }
}

TEST(ApiRefusals, HoldsToItsLimits) {
  ApiSettings settings;
  settings.limits = {.prompt_tokens = 10, .new_tokens = 20, .sequences = 3, .depth_tokens = 8};
  Served served(settings);
  const auto code = [&](const Json& body) {
    const Answer answer = served.post("/v1/completions", body);
    return answer.status == 200 ? "" : answer.code();
  };
  EXPECT_EQ(code({{"prompt", "12345678901"}}), "prompt_too_long");
  EXPECT_EQ(code({{"prompt", "1234567890"}}), "");
  EXPECT_EQ(code({{"prompt", "123456789"}, {"depth_weights", true}}), "prompt_too_long");
  EXPECT_EQ(code({{"prompt", "1"}, {"max_tokens", 21}}), "invalid_value");
  EXPECT_EQ(code({{"prompt", {"1", "2"}}, {"n", 2}}), "too_many_sequences");
  EXPECT_EQ(code({{"prompt", {"1", "2", "3"}}}), "");
  EXPECT_EQ(served.post("/v1/depth", {{"prompt", "123456789"}}).code(), "prompt_too_long");
}

// As docs/serving.md has it of --max-new-tokens: the context is no error.
TEST(ApiRefusals, CutsATextWhereTheContextEnds) {
  Served served;
  const Answer answer =
      served.post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1'000'000}});
  ASSERT_EQ(answer.status, 200) << answer.text;
  EXPECT_LT(answer.json()["usage"]["completion_tokens"], 1'000'000);
}

// One prompt that is asked for many times is looked at once, before there are copies of it.
TEST(ApiRefusals, LooksAtAPromptBeforeItCopiesIt) {
  Served served;
  const Json ids(std::vector<int>(1'000'000, 65));
  if (!reset_peak_resident_bytes()) GTEST_SKIP() << "the peak of memory cannot be read anew";
  const int64_t before = peak_resident_bytes();
  const Answer answer = served.post("/v1/completions", {{"prompt", ids}, {"n", 128}});
  EXPECT_EQ(answer.code(), "context_length_exceeded");
  EXPECT_LT(peak_resident_bytes() - before, 128 * 4'000'000);
  const Json many(std::vector<std::string>(1000, "a"));
  EXPECT_EQ(served.post("/v1/completions", {{"prompt", many}}).code(), "too_many_sequences");
}

// Not that something failed: the client may ask another server.
TEST(ApiRefusals, SaysThatItShutsDown) {
  Served served;
  std::atomic<int> steps = 0;
  auto answering = std::async(std::launch::async, [&] {
    return served.ask(
        {.method = "POST",
         .path = "/v1/completions",
         .body = R"({"prompt": "a", "n": 128, "max_tokens": 200, "logit_bias": {"0": -100}})",
         .gone = [&] { return ++steps < 0; }});
  });
  while (steps < 5) std::this_thread::yield();
  served.loop.end("the server ends");
  const Answer answer = answering.get();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.code(), "shutting_down");
  EXPECT_EQ(answer.headers.at("Retry-After"), "1");
  EXPECT_EQ(served.log.back().reason, "shutting_down");
}

// Whoever asks in one piece waits for an answer, and must not go on waiting for a client that went.
TEST(ApiRefusals, EndsARequestWhoseClientGoes) {
  Served served;
  std::atomic<int> asked = 0;  // by two threads
  const Answer answer =
      served.ask({.method = "POST",
                  .path = "/v1/completions",
                  .body = R"({"prompt": "a", "max_tokens": 200, "logit_bias": {"0": -100}})",
                  .gone = [&] { return ++asked > 5; }});
  EXPECT_EQ(answer.status, 499);
  EXPECT_EQ(served.log.back().reason, "gone");
  EXPECT_EQ(served.loop.status().running, 0);
}

TEST(ApiRefusals, RefusesOnTheHeadAlone) {
  Served served({.api_key = "secret"});
  const auto status = [&](const HttpRequest& head) {
    const std::optional<HttpReply> refused = served.api.refusal(head);
    return refused ? refused->status : 0;
  };
  HttpRequest head = {.method = "POST", .path = "/v1/completions"};
  EXPECT_EQ(status(head), 401);
  ASSERT_EQ(served.log.size(), 1);
  EXPECT_EQ(served.log[0].reason, "invalid_api_key");
  EXPECT_THAT(served.get("/health").text, HasSubstr("ok"));
  head.headers = {{"authorization", "Bearer secret"}};
  EXPECT_EQ(status(head), 0);
  head.path = "/nothing";
  EXPECT_EQ(status(head), 404);
  head.path = "/v1/models";
  EXPECT_EQ(status(head), 405);
}

// Those that come to nobody's ears otherwise: no room, no request.
TEST(ApiRefusals, LogsAndCountsWhatItDidNotRead) {
  Served served({.api_key = "secret"});
  const HttpReply reply =
      served.api.answer_unread({.client = "192.0.2.7"}, 503, "too_many_connections", "no room");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers.at("Retry-After"), "1");
  ASSERT_EQ(served.log.size(), 1);
  EXPECT_EQ(served.log[0].client, "192.0.2.7");
  EXPECT_EQ(served.log[0].status, 503);
  EXPECT_EQ(served.log[0].reason, "too_many_connections");
  const HttpRequest asked = {
      .method = "GET", .path = "/metrics", .headers = {{"authorization", "Bearer secret"}}};
  EXPECT_THAT(served.ask(asked).text,
              HasSubstr("attnres_requests_total{path=\"other\",status=\"503\"} 1\n"));
}

TEST(ApiRefusals, AsksForItsKey) {
  Served served({.api_key = "secret"});
  const auto status = [&](const std::string& path, const std::string& authorization) {
    HttpRequest request{.method = "GET", .path = path};
    if (!authorization.empty()) request.headers["authorization"] = authorization;
    return served.ask(request).status;
  };
  EXPECT_EQ(status("/v1/models", "Bearer secret"), 200);
  EXPECT_EQ(status("/v1/models", "bearer secret"), 200);  // a scheme has no case, a key has
  for (const char* wrong : {"", "secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secret1",
                            "Bearer SECRET", "Basic secret"}) {
    EXPECT_EQ(status("/v1/models", wrong), 401) << wrong;
  }
  EXPECT_EQ(status("/health", ""), 200);
}

TEST(ApiRefusals, LetsOnlyNamedPagesAsk) {
  Served served({.origins = {"https://example.org"}});
  const auto ask = [&](const std::string& origin, const std::string& host) {
    HttpRequest request{.method = "GET", .path = "/v1/models", .headers = {{"host", host}}};
    if (!origin.empty()) request.headers["origin"] = origin;
    return served.ask(request);
  };
  EXPECT_EQ(ask("", "127.0.0.1:8080").status, 200);
  EXPECT_EQ(ask("http://localhost:8080", "localhost:8080").status, 200);
  EXPECT_EQ(ask("http://[::1]:8080", "[::1]:8080").status, 200);
  EXPECT_EQ(ask("http://localhost:8080", "LOCALHOST:8080").status, 200);
  const Answer named = ask("https://example.org", "127.0.0.1:8080");
  EXPECT_EQ(named.status, 200);
  EXPECT_EQ(named.headers.at("Access-Control-Allow-Origin"), "https://example.org");
  EXPECT_EQ(ask("https://evil.org", "127.0.0.1:8080").status, 403);
  // A name that was made to mean this machine.
  EXPECT_EQ(ask("http://evil.org:8080", "evil.org:8080").code(), "host_not_allowed");
  EXPECT_EQ(ask("", "evil.org").status, 403);
  EXPECT_EQ(ask("", "example.org").status, 200);  // behind a proxy
  EXPECT_EQ(ask("https://evil.org", "example.org").code(), "origin_not_allowed");
  EXPECT_FALSE(ask("", "127.0.0.1").headers.contains("Access-Control-Allow-Origin"));
}

// What no memory was found for is no mistake of who asks, and may be asked again.
TEST(ApiRefusals, SayThatMemoryRanOut) {
  EXPECT_EQ(failure_of(std::bad_alloc()).status, 503);
  EXPECT_EQ(failure_of(std::bad_alloc()).code, "out_of_memory");
  EXPECT_EQ(failure_of(std::runtime_error("it went wrong")).status, 500);
  EXPECT_THROW(pass_on_shortage(std::bad_alloc()), ApiError);
  EXPECT_NO_THROW(pass_on_shortage(std::runtime_error("a mistake")));
}

// Two bytes of a request may name a token of a hundred.
TEST(ApiRefusals, DecodesSoManyTokens) {
  Served served;
  const auto ask = [&](int tokens) {
    return served.post("/detokenize", {{"tokens", std::vector<int>(tokens, 65)}});
  };
  EXPECT_EQ(ask(1 << 16).status, 200);
  EXPECT_EQ(ask((1 << 16) + 1).param(), "tokens");
}

// A message is read in a time that grows as its size does; otherwise this would take minutes.
TEST(ApiRefusals, TakesAMessageOfManyNames) {
  Served served;
  Json message = {{"role", "user"}, {"content", "a"}};
  auto& members = message.get_ref<Json::object_t&>();
  for (int i = 0; i < 300'000; ++i) members.emplace_back(std::to_string(i), 0);
  EXPECT_EQ(served.post("/tokenize", {{"messages", Json::array({message})}}).status, 200);
}

TEST(ApiRefusals, ReachesNoFileByAPath) {
  Served served;
  for (const char* path :
       {"/../etc/passwd", "/v1/models/../../etc/passwd", "//etc/passwd", "/v1/models/",
        "/page.html", "/openapi.json/..", "/.", "\\etc\\passwd"}) {
    EXPECT_EQ(served.get(path).status, 404) << path;
  }
}

// Counts what is looked at.
class Looked {
 public:
  explicit Looked(std::string text) : text_(std::move(text)) {}
  size_t size() const { return text_.size(); }
  char operator[](size_t at) const {
    looked_.push_back(at);
    return text_[at];
  }
  const std::vector<size_t>& looked() const { return looked_; }

 private:
  std::string text_;
  mutable std::vector<size_t> looked_;
};

TEST(EqualKeys, LookAtTheSameBytesWhereverTheyDiffer) {
  const auto looked_at = [](const std::string& given, bool equal) {
    const Looked left(given), key("secret");
    EXPECT_EQ(equal_keys(left, key), equal) << given;
    return std::pair(left.looked(), key.looked());
  };
  const auto right = looked_at("secret", true);
  EXPECT_EQ(right.first.size(), 6);
  for (const char* wrong : {"xecret", "secrex", "xxxxxx", "SECRET"}) {
    EXPECT_EQ(looked_at(wrong, false), right) << wrong;
  }
  for (const char* wrong : {"", "secre", "secrets"}) {
    EXPECT_EQ(looked_at(wrong, false).second, right.second) << wrong;
  }
}

}  // namespace
}  // namespace attnres::api_refusals_test
