// What endpoints make of a backend's words, without a model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attnres/serve/api.h"
#include "attnres/serve/backend.h"
#include "tests/serve/served.h"

namespace attnres::endpoints_test {
namespace {

using testing::Answer;
using testing::answer_of;
using ::testing::HasSubstr;

// Bytes are its tokens, and it continues every text by "!?".
class Parrot : public Backend {
 public:
  const ModelDescription& model() const override { return description; }
  int64_t context() const override { return 16; }
  void check(const TextRequest& request) const override {
    if (!request.ids.empty() && request.ids[0] == 'x') throw std::runtime_error("no x");
  }
  std::vector<int32_t> prompt_ids(const std::string& text) const override {
    return encode(begin_of_text + text);
  }
  std::vector<int32_t> encode_framed(const std::string& text) const override {
    return encode(begin_of_text + text);
  }
  std::vector<int32_t> encode(const std::string& text) const override {
    return {text.begin(), text.end()};
  }
  std::string decode(const std::vector<int32_t>& ids) const override {
    return {ids.begin(), ids.end()};
  }
  std::string token_text(int32_t id) const override { return decode({id}); }
  std::shared_ptr<const TokenConstraint> constraint(const AnswerGrammar&) const override {
    return nullptr;
  }
  TextRequest chat_request(const std::string& conversation) const override {
    return {.ids = encode(Json::parse(conversation)["messages"].back()["content"])};
  }

  std::shared_ptr<Exchange> submit(std::vector<TextRequest> sequences, const std::string&,
                                   std::function<bool()> gone) override {
    auto exchange = std::make_shared<Exchange>(std::move(gone));
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (!error.empty()) {
        exchange->fail(i, error, shuts_down);
        continue;
      }
      TextUpdate first, last;
      const GenerationSettings& asked = sequences[i].generation;
      sampled = asked.sampling;
      if (asked.mean_hidden) last.mean_hidden = {0.5, static_cast<float>(i)};
      if (asked.depth_weights) {
        last.depth.weights.assign(sequences[i].ids.size(), {{0.25, 0.75}});
      }
      if (asked.max_tokens > 0) {
        first.token = '!';
        first.text = "!";
        first.pieces = pieces;
        last.token = '?';
        last.text = "?";
        last.pieces = {{.text = "?"}};
        exchange->hear({i, first});
      }
      last.stopped = StopReason::max_tokens;
      exchange->hear({i, last});
    }
    return exchange;
  }
  LoopStatus status() const override { return {.slots = 3, .waiting = 2, .running = 1}; }

  std::string error;                                 // that every sequence fails with
  std::string begin_of_text;                         // that is put before a text
  std::vector<ReplyPiece> pieces = {{.text = "!"}};  // that an answer begins with
  bool shuts_down = false;

  SamplingSettings sampled;  // of the newest sequence
  ModelDescription description = {.name = "parrot",
                                  .parameters = 7,
                                  .layers = 1,
                                  .width = 2,
                                  .vocabulary = 256,
                                  .mechanism = "attn_res",
                                  .tokenizer = "bytes",
                                  .chat_template = "plain",
                                  .begin_of_text = "",
                                  .end_of_document = "",
                                  .sites = {{1, "output", {"embedding", "block 1"}}}};
};

class Endpoints : public ::testing::Test {
 protected:
  Answer ask(const std::string& method, const std::string& path, const std::string& body = "") {
    return answer_of(api_({.method = method, .path = path, .body = body}));
  }
  Answer post(const std::string& path, const Json& body) { return ask("POST", path, body.dump()); }

  std::vector<AnsweredRequest> log_;
  Parrot parrot_;
  Api api_{parrot_, {}, [this](const AnsweredRequest& request) { log_.push_back(request); }};
};

TEST_F(Endpoints, ContinueTexts) {
  const Json whole = post("/v1/completions", {{"prompt", "Hi"}, {"max_tokens", 2}}).json();
  EXPECT_EQ(whole["choices"][0]["text"], "!?");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 2);
  const Json messages = Json::array({{{"role", "user"}, {"content", "Ho"}}});
  const Answer stream =
      post("/v1/chat/completions", {{"messages", messages}, {"max_tokens", 2}, {"stream", true}});
  const std::vector<std::string> events = stream.events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(Json::parse(events[0])["choices"][0]["delta"]["content"], "!");
  EXPECT_EQ(Json::parse(events[1])["choices"][0]["delta"]["content"], "?");
  EXPECT_EQ(events[2], "[DONE]");
  ASSERT_EQ(log_.size(), 2u);
  for (const AnsweredRequest& request : log_) {
    EXPECT_EQ(request.status, 200);
    EXPECT_EQ(request.reason, "length");
    EXPECT_EQ(request.new_tokens, 2);
  }
}

TEST_F(Endpoints, GiveAnAnswersParts) {
  using Kind = ReplyPiece::Kind;
  parrot_.pieces = {{Kind::thought, "hm"},
                    {Kind::answer, "so"},
                    {Kind::call, "add", 0, "functions.add:0"},
                    {Kind::arguments, "{\"a\":", 0},
                    {Kind::arguments, " 1}", 0},
                    {Kind::call, "now", 1},
                    {Kind::arguments, "{}", 1}};
  Json body = {{"messages", {{{"role", "user"}, {"content", "Ho"}}}}, {"max_tokens", 2}};
  const Json message = post("/v1/chat/completions", body).json()["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "hm");
  EXPECT_EQ(message["content"], "so?");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  EXPECT_EQ(message["tool_calls"][0],
            (Json{{"id", "functions.add:0"},
                  {"type", "function"},
                  {"function", {{"name", "add"}, {"arguments", "{\"a\": 1}"}}}}));
  EXPECT_EQ(message["tool_calls"][1]["function"]["name"], "now");
  EXPECT_EQ(message["tool_calls"][1]["id"].get<std::string>().substr(0, 5), "call_");

  body["stream"] = true;
  const std::vector<std::string> events = post("/v1/chat/completions", body).events();
  const Json first = Json::parse(events[0])["choices"][0]["delta"];
  EXPECT_EQ(first["role"], "assistant");
  EXPECT_EQ(first["reasoning_content"], "hm");
  EXPECT_EQ(first["tool_calls"][1]["index"], 1);
  EXPECT_EQ(Json::parse(events[1])["choices"][0]["delta"], (Json{{"content", "?"}}));

  // Calls alone have no content.
  parrot_.pieces = {{Kind::call, "now", 0}};
  body.erase("stream");
  body["max_tokens"] = 2;
  EXPECT_EQ(post("/v1/chat/completions", body).json()["choices"][0]["finish_reason"], "length");
}

TEST_F(Endpoints, ReadTexts) {
  const Json embedded = post("/v1/embeddings", {{"input", {"a", "bc"}}}).json();
  EXPECT_EQ(embedded["data"][1]["embedding"], (Json{0.5, 1.0}));
  EXPECT_EQ(embedded["usage"]["prompt_tokens"], 3);
  const Json depth = post("/v1/depth", {{"prompt", "abc"}}).json();
  EXPECT_EQ(depth["weights"].size(), 3u);
  EXPECT_EQ(depth["shares"][1], (Json{{"source", "block 1"}, {"share", 0.75}}));
  const std::string id =
      post("/v1/completions", {{"prompt", "Hi"}, {"max_tokens", 2}}).json()["id"];
  EXPECT_EQ(post("/v1/depth", {{"request", id}}).json()["weights"].size(), 4u);
  EXPECT_EQ(post("/v1/depth", {{"request", "another"}}).code(), "request_not_found");
}

TEST_F(Endpoints, SampleAsTheModelSaysWhereARequestDoesNot) {
  parrot_.description.sampling = {.temperature = 0.25, .top_k = 7, .top_p = 0.5};
  post("/v1/completions", {{"prompt", "H"}, {"top_k", 3}});
  EXPECT_EQ(parrot_.sampled.temperature, 0.25);
  EXPECT_EQ(parrot_.sampled.top_k, 3);
  EXPECT_EQ(parrot_.sampled.top_p, 0.5);
  const Json message = {{"role", "user"}, {"content", "H"}};
  post("/v1/chat/completions", {{"messages", Json::array({message})}, {"temperature", 1}});
  EXPECT_EQ(parrot_.sampled.temperature, 1);
  EXPECT_EQ(parrot_.sampled.top_k, 7);
}

TEST_F(Endpoints, PutTokensBeforeTexts) {
  parrot_.begin_of_text = "^";
  const auto ids = [&](const Json& fields) { return post("/tokenize", fields).json()["tokens"]; };
  EXPECT_EQ(ids({{"prompt", "H"}}), (Json{'^' + 0, 'H' + 0}));
  EXPECT_EQ(ids({{"prompt", "H"}, {"add_special_tokens", false}}), Json::array({72}));
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "H"}}}}};
  EXPECT_EQ(ids(chat), Json::array({72}));
  Json added = chat;
  added["add_special_tokens"] = true;
  EXPECT_EQ(post("/tokenize", added).status, 400);
  const auto echoed = [&](const Json& prompt, bool add) {
    return post("/v1/completions",
                {{"prompt", prompt}, {"echo", true}, {"add_special_tokens", add}})
        .json()["choices"][0]["text"];
  };
  EXPECT_EQ(echoed("H", true), "^H!?");
  EXPECT_EQ(echoed("H", false), "H!?");
  EXPECT_EQ(echoed(Json::array({72}), true), "H!?") << "ids are as they are given";
}

TEST_F(Endpoints, TellOfModelTokensAndServer) {
  EXPECT_EQ(ask("GET", "/v1/models").json()["data"][0]["id"], "parrot");
  EXPECT_EQ(ask("GET", "/v1/models/parrot").json()["attnres"]["context"], 16);
  EXPECT_EQ(ask("GET", "/v1/models/owl").status, 404);
  EXPECT_EQ(post("/tokenize", {{"prompt", "Hi"}}).json()["tokens"], (Json{'H' + 0, 'i' + 0}));
  EXPECT_EQ(post("/detokenize", {{"tokens", {72, 105}}}).json()["prompt"], "Hi");
  EXPECT_EQ(ask("GET", "/tokenizer_info").json()["vocab_size"], 256);
  EXPECT_EQ(ask("GET", "/tokenizer_info").json()["bos_token"], nullptr);
  parrot_.description.begin_of_text = "<s>";
  EXPECT_EQ(ask("GET", "/tokenizer_info").json()["bos_token"], "<s>");
  const Json health = ask("GET", "/health").json();
  EXPECT_EQ(health["slots"], 3);
  EXPECT_EQ(health["waiting"], 2);
  EXPECT_THAT(ask("GET", "/metrics").text, HasSubstr("attnres_slots 3\n"));
}

TEST_F(Endpoints, SayWhatFails) {
  const Json body = {{"prompt", "Hi"}, {"max_tokens", 2}};
  EXPECT_THAT(post("/v1/completions", {{"prompt", "xy"}}).text, HasSubstr("no x"));
  EXPECT_EQ(post("/v1/embeddings", {{"input", std::string(17, 'a')}}).code(),
            "context_length_exceeded");
  parrot_.error = "a wire broke";
  EXPECT_EQ(post("/v1/completions", body).status, 500);
  EXPECT_EQ(log_.back().reason, "failed");
  Json streamed = body;
  streamed["stream"] = true;
  EXPECT_THAT(post("/v1/completions", streamed).text, HasSubstr("a wire broke"));
  EXPECT_EQ(log_.back().status, 500);
  parrot_.shuts_down = true;
  EXPECT_EQ(post("/v1/completions", body).status, 503);
}

}  // namespace
}  // namespace attnres::endpoints_test
