// What OpenAI's clients are answered: numbers against the model itself, and every field.
#include "attnres/serve/api.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "attnres/infer/generate.h"
#include "attnres/infer/inference_model.h"
#include "attnres/infer/score.h"
#include "attnres/model/token_depth_weights.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/file.h"
#include "attnres/text/tokenizer.h"
#include "tests/serve/served.h"
#include "tests/text/test_files.h"

namespace attnres::api_test {
namespace {

using testing::Answer;
using ::testing::HasSubstr;
using testing::kModel;
using testing::Served;

const std::string kPrompt = "KING HENRY:\nWhat say ";

std::vector<int32_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

// The model, by itself.
const Transformer& model() {
  static const auto loaded = load_model(kModel);
  return *loaded;
}

std::string greedy(const std::string& prompt, int64_t tokens) {
  const Generation generation =
      generate(LocalModel(model()), bytes_of(prompt), 256,
               {.sampling = {.temperature = 0}, .max_tokens = tokens, .ends = {0}});
  return {generation.tokens.begin(), generation.tokens.end()};
}

class ApiTest : public ::testing::Test {
 protected:
  Json completion(const Json& fields) {
    Json body = {{"prompt", kPrompt}, {"temperature", 0}};
    body.update(fields);
    const Answer answer = served_.post("/v1/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.text;
    return answer.json();
  }

  Served served_;
};

TEST_F(ApiTest, ContinuesATextAsTheModelDoes) {
  const Json reply = completion({{"max_tokens", 40}});
  EXPECT_EQ(reply["object"], "text_completion");
  EXPECT_EQ(reply["model"], "tiny-shakespeare");
  EXPECT_THAT(reply["id"].get<std::string>(), ::testing::StartsWith("cmpl-"));
  const Json& choice = reply["choices"][0];
  EXPECT_EQ(choice["text"], greedy(kPrompt, 40));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_EQ(reply["usage"]["prompt_tokens"], kPrompt.size());
  EXPECT_EQ(reply["usage"]["completion_tokens"], 40);
  EXPECT_NE(choice["text"], greedy("KING HENRY:\nWhat sad", 40));  // another prompt differs
}

TEST_F(ApiTest, TakesIdsAndListsAndGivesSeveralOfEach) {
  const Json ids = bytes_of(kPrompt);
  EXPECT_EQ(completion({{"prompt", ids}})["choices"][0]["text"], greedy(kPrompt, 16));
  const Json reply = completion({{"prompt", {kPrompt, "ROMEO:"}}, {"n", 2}, {"max_tokens", 8}});
  ASSERT_EQ(reply["choices"].size(), 4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(reply["choices"][i]["index"], i);
    EXPECT_EQ(reply["choices"][i]["text"], greedy(i < 2 ? kPrompt : "ROMEO:", 8)) << i;
  }
  EXPECT_EQ(reply["usage"]["prompt_tokens"], kPrompt.size() + 6);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 32);

  // Sampled ones differ from each other, and a seed gives them again.
  const Json sampled = {{"n", 2}, {"temperature", 1}, {"seed", 7}, {"max_tokens", 20}};
  const Json once = completion(sampled), again = completion(sampled);
  EXPECT_EQ(once["choices"], again["choices"]);
  EXPECT_NE(once["choices"][0]["text"], once["choices"][1]["text"]);
}

// Without a seed each sequence has its own; with one, equal prompts are continued alike.
TEST_F(ApiTest, ContinuesEqualPromptsDifferently) {
  Json fields = {{"prompt", {"a", "a", "a"}}, {"n", 2}, {"temperature", 1}, {"max_tokens", 20}};
  const auto different = [&] {
    std::set<std::string> texts;
    const Json reply = completion(fields);
    for (const Json& choice : reply["choices"]) texts.insert(choice["text"].get<std::string>());
    return texts.size();
  };
  EXPECT_EQ(different(), 6);
  fields["seed"] = 7;
  EXPECT_EQ(different(), 2);
}

// What lm-eval reads: of a prompt that is echoed, each token's log-probability.
TEST_F(ApiTest, EchoesLogProbabilitiesOfThePrompt) {
  const Json choice =
      completion({{"max_tokens", 1}, {"echo", true}, {"logprobs", 1}})["choices"][0];
  const Json& logprobs = choice["logprobs"];
  const std::string next = greedy(kPrompt, 1);
  EXPECT_EQ(choice["text"], kPrompt + next);
  ASSERT_EQ(logprobs["token_logprobs"].size(), kPrompt.size() + 1);
  ASSERT_EQ(logprobs["top_logprobs"].size(), kPrompt.size() + 1);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  const std::vector<double> expected =
      score_sequence(LocalModel(model()), bytes_of(kPrompt + next), 256);
  int greedy_tokens = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double given = logprobs["token_logprobs"][i + 1];
    EXPECT_NEAR(given, expected[i], 1e-4) << i;
    EXPECT_EQ(logprobs["tokens"][i + 1], std::string(1, (kPrompt + next)[i + 1]));
    EXPECT_EQ(logprobs["text_offset"][i + 1], i + 1);
    double largest = -INFINITY;
    for (const Json& top : logprobs["top_logprobs"][i + 1]) {
      largest = std::max(largest, top.get<double>());
    }
    EXPECT_GE(largest, given);
    greedy_tokens += largest == given;  // exactly: clients compare them
  }
  EXPECT_GT(greedy_tokens, 0);
  EXPECT_LT(greedy_tokens, static_cast<int>(expected.size()));
  EXPECT_GT(std::abs(expected[1] - expected[0]), 1e-3);  // a shift would show

  // Scored only.
  const Json scored =
      completion({{"max_tokens", 0}, {"echo", true}, {"logprobs", 0}})["choices"][0];
  EXPECT_EQ(scored["text"], kPrompt);
  EXPECT_EQ(scored["logprobs"]["token_logprobs"].size(), kPrompt.size());
}

TEST_F(ApiTest, StreamsWhatItWouldGiveAtOnce) {
  const Json fields = {{"prompt", kPrompt},
                       {"temperature", 0},
                       {"max_tokens", 12},
                       {"logprobs", 2},
                       {"n", 2},
                       {"stream", true},
                       {"stream_options", {{"include_usage", true}}}};
  Json whole = fields;
  whole["stream"] = false;
  const Json expected = served_.post("/v1/completions", whole).json();
  const Answer answer = served_.post("/v1/completions", fields);
  EXPECT_EQ(answer.type, "text/event-stream");
  std::vector<std::string> events = answer.events();
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  const Json usage = Json::parse(events.back());
  EXPECT_TRUE(usage["choices"].empty());
  for (const char* count : {"prompt_tokens", "completion_tokens"}) {
    EXPECT_EQ(usage["usage"][count], expected["usage"][count]);
  }
  events.pop_back();
  std::vector<std::string> texts(2), ends(2);
  std::vector<Json> logprobs(2, Json::array());
  for (const std::string& event : events) {
    const Json piece = Json::parse(event)["choices"][0];
    const size_t index = piece["index"];
    texts[index] += piece["text"];
    for (const Json& number : piece["logprobs"]["token_logprobs"])
      logprobs[index].push_back(number);
    if (!piece["finish_reason"].is_null()) ends[index] = piece["finish_reason"];
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(texts[i], expected["choices"][i]["text"]);
    const Json& numbers = expected["choices"][i]["logprobs"]["token_logprobs"];
    ASSERT_EQ(logprobs[i].size(), numbers.size());
    for (size_t t = 0; t < numbers.size(); ++t) {
      EXPECT_NEAR(logprobs[i][t].get<double>(), numbers[t].get<double>(), 1e-4);
    }
    EXPECT_EQ(ends[i], "length");
  }
}

TEST_F(ApiTest, StopsBeforeAStopText) {
  const std::string free = greedy(kPrompt, 60);
  const std::string stop = free.substr(10, 3);
  const Json choice = completion({{"max_tokens", 60}, {"stop", {stop}}})["choices"][0];
  EXPECT_EQ(choice["text"], free.substr(0, free.find(stop)));
  EXPECT_EQ(choice["finish_reason"], "stop");
  // Texts that mean nothing are as good as none.
  EXPECT_EQ(completion({{"max_tokens", 60}, {"stop", {""}}})["choices"][0]["text"], free);
}

TEST_F(ApiTest, ConversesInAPlainTranscript) {
  const Json messages = {
      {{"role", "system"}, {"content", "A play."}},
      {{"role", "user"}, {"content", Json::array({{{"type", "text"}, {"text", "Speak"}}})}}};
  const Json fields = {{"messages", messages},
                       {"temperature", 0},
                       {"max_tokens", 30},
                       {"logprobs", true},
                       {"top_logprobs", 2}};
  const Answer answer = served_.post("/v1/chat/completions", fields);
  ASSERT_EQ(answer.status, 200) << answer.text;
  const Json choice = answer.json()["choices"][0];
  std::string expected = greedy("A play.\n\nUser: Speak\nAssistant:", 30);
  expected = expected.substr(0, std::min(expected.find("\nUser:"), expected.find("\nAssistant:")));
  EXPECT_EQ(choice["message"]["content"], expected);
  EXPECT_EQ(choice["message"]["role"], "assistant");
  const Json& first = choice["logprobs"]["content"][0];
  EXPECT_EQ(first["token"], expected.substr(0, 1));
  EXPECT_EQ(first["bytes"][0], static_cast<unsigned char>(expected[0]));
  EXPECT_EQ(first["top_logprobs"].size(), 2);
  EXPECT_EQ(first["top_logprobs"][0]["logprob"], first["logprob"]);

  Json streamed = fields;
  streamed["stream"] = true;
  std::vector<std::string> events = served_.post("/v1/chat/completions", streamed).events();
  events.pop_back();
  EXPECT_EQ(Json::parse(events[0])["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(Json::parse(events[0])["object"], "chat.completion.chunk");
  std::string text;
  for (const std::string& event : events)
    text += Json::parse(event)["choices"][0]["delta"]["content"];
  EXPECT_EQ(text, expected);
}

void expect_depth_weights(const Json& weights, size_t first, const std::string& text) {
  const at::NoGradGuard no_grad;
  const std::vector<int32_t> ids = bytes_of(text);
  const std::vector<TokenDepthWeights> expected =
      token_depth_weights(model(), at::tensor(std::vector<int64_t>(ids.begin(), ids.end())));
  double shifted = 0;  // how far it is from the next token's
  for (size_t t = 0; t < weights.size(); ++t) {
    ASSERT_EQ(weights[t].size(), expected.size());
    for (size_t s = 0; s < expected.size(); ++s) {
      const auto& numbers = expected[s].weights;
      ASSERT_EQ(weights[t][s].size(), expected[s].sources.size());
      for (size_t i = 0; i < expected[s].sources.size(); ++i) {
        const double given = weights[t][s][i];
        EXPECT_NEAR(given, numbers[first + t][i], 1e-4) << t << " " << s << " " << i;
        if (first + t + 1 < numbers.size()) {
          shifted = std::max(shifted, std::abs(given - numbers[first + t + 1][i]));
        }
      }
    }
  }
  EXPECT_GT(shifted, 1e-2);
}

TEST_F(ApiTest, ShowsTheDepthWeightsOfAText) {
  const Answer answer = served_.post("/v1/depth", {{"prompt", kPrompt}});
  ASSERT_EQ(answer.status, 200) << answer.text;
  const Json depth = answer.json();
  ASSERT_EQ(depth["weights"].size(), kPrompt.size());
  expect_depth_weights(depth["weights"], 0, kPrompt);
  EXPECT_EQ(depth["tokens"][0]["text"], "K");
  EXPECT_EQ(depth["tokens"][0]["id"], 'K');
  EXPECT_EQ(depth["sites"][0]["name"], "attention 1");
  EXPECT_EQ(depth["sites"].size(), depth["weights"][0].size());
  double shares = 0, entropy = 0;
  for (const Json& share : depth["shares"]) shares += share["share"].get<double>();
  EXPECT_NEAR(shares, 1, 1e-5);
  for (const Json& weight : depth["weights"][3][5]) {
    entropy -= weight.get<double>() * std::log(weight.get<double>());
  }
  EXPECT_NEAR(depth["entropy"][3][5].get<double>(), entropy, 1e-5);
}

TEST_F(ApiTest, ShowsDepthWeightsWhileItStreams) {
  std::vector<std::string> events = served_
                                        .post("/v1/completions", {{"prompt", kPrompt},
                                                                  {"temperature", 0},
                                                                  {"max_tokens", 6},
                                                                  {"stream", true},
                                                                  {"depth_weights", true}})
                                        .events();
  events.pop_back();
  const std::string text = kPrompt + greedy(kPrompt, 6);
  Json weights = Json::array();
  std::string id;
  for (const std::string& event : events) {
    const Json data = Json::parse(event);
    id = data["id"];
    ASSERT_TRUE(data.contains("depth"));
    EXPECT_EQ(data["depth"]["position"], weights.size());
    EXPECT_EQ(data["depth"]["tokens"][0]["text"], std::string(1, text[weights.size()]));
    for (const Json& token : data["depth"]["weights"]) weights.push_back(token);
  }
  ASSERT_EQ(weights.size(), text.size() - 1);  // the last token is not read
  expect_depth_weights(weights, 0, text);
  // A finished request has all of them.
  const Json finished = served_.post("/v1/depth", {{"request", id}}).json();
  expect_depth_weights(finished["weights"], 0, text);
  EXPECT_EQ(finished["weights"].size(), text.size());
}

TEST_F(ApiTest, EmbedsATextAsItsMeanHiddenState) {
  const at::NoGradGuard no_grad;
  const std::vector<int32_t> ids = bytes_of(kPrompt);
  const at::Tensor ids_T = at::tensor(std::vector<int64_t>(ids.begin(), ids.end()));
  const at::Tensor mean = model().hidden(ids_T.unsqueeze(0))[0].mean(0);
  const Json given =
      served_.post("/v1/embeddings", {{"input", {kPrompt, "ROMEO:"}}}).json()["data"];
  ASSERT_EQ(given[0]["embedding"].size(), mean.numel());
  double difference = 0;
  for (int64_t i = 0; i < mean.numel(); ++i) {
    EXPECT_NEAR(given[0]["embedding"][i].get<double>(), mean[i].item<double>(), 1e-4);
    difference += std::abs(given[1]["embedding"][i].get<double>() - mean[i].item<double>());
  }
  EXPECT_GT(difference, 0.1);
  const Json packed =
      served_.post("/v1/embeddings", {{"input", kPrompt}, {"encoding_format", "base64"}}).json();
  const std::string text = packed["data"][0]["embedding"];
  EXPECT_EQ(text.size(), (mean.numel() * 4 + 2) / 3 * 4);
}

TEST_F(ApiTest, TokenizesAndBack) {
  const Json tokens = served_.post("/tokenize", {{"prompt", "naïve"}}).json()["tokens"];
  EXPECT_EQ(tokens, Json({110, 97, 195, 175, 118, 101}));
  EXPECT_EQ(served_.post("/detokenize", {{"tokens", tokens}}).json()["prompt"], "naïve");
  EXPECT_EQ(served_.get("/tokenizer_info").json()["tokenizer_class"], "bytes");

  const Json chat = {{"messages", {{{"role", "user"}, {"content", "Speak"}}}}};
  const Json ids = served_.post("/tokenize", chat).json()["tokens"];
  EXPECT_EQ(served_.post("/detokenize", {{"tokens", ids}}).json()["prompt"],
            "User: Speak\nAssistant:");
  EXPECT_EQ(served_.post("/tokenize", {{"messages", Json::array()}}).status, 400);
}

// vLLM's fields, on the bundled model, whose tokens are bytes.
TEST(FieldsOfVllm, SayWhereATextEndsAndWhichTokensItHas) {
  Served served;
  const auto complete = [&](Json fields) {
    Json body = {{"prompt", "KING HENRY:"}, {"max_tokens", 12}, {"temperature", 0}};
    body.update(fields);
    const Answer answer = served.post("/v1/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.text;
    return answer.json()["choices"][0];
  };
  const std::string text = complete(Json::object())["text"];
  const int letter = static_cast<unsigned char>(text[4]);
  const Json stopped = complete({{"stop_token_ids", {letter}}});
  EXPECT_EQ(stopped["text"], text.substr(0, text.find(text[4])));
  EXPECT_EQ(stopped["finish_reason"], "stop");

  // Neither before so many tokens, and then as ever.
  EXPECT_EQ(complete({{"min_tokens", 4}, {"stop", text.substr(1, 2)}})["text"], text);
  EXPECT_EQ(complete({{"min_tokens", 4}, {"stop", text.substr(4, 2)}})["text"], text.substr(0, 4));
  EXPECT_EQ(complete({{"min_tokens", 12}, {"stop_token_ids", {letter}}})["finish_reason"],
            "length");
  const std::string longer = complete({{"min_tokens", 6}, {"stop_token_ids", {letter}}})["text"];
  EXPECT_GE(longer.size(), 6u);
  EXPECT_EQ(longer.find(text[4]), longer.npos);  // but that token is not taken
  const Answer refused =
      served.post("/v1/completions", {{"prompt", "KING"}, {"max_tokens", 4}, {"min_tokens", 5}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.param(), "min_tokens");

  const Json shown = complete({{"return_token_ids", true}});
  EXPECT_EQ(shown["token_ids"], Json(std::vector<int>(text.begin(), text.end())));
  const std::string prompt = "KING HENRY:";
  EXPECT_EQ(shown["prompt_token_ids"], Json(std::vector<int>(prompt.begin(), prompt.end())));

  const Json scored = complete({{"prompt_logprobs", 2}})["prompt_logprobs"];
  const Json echoed = complete({{"echo", true}, {"logprobs", 2}})["logprobs"]["token_logprobs"];
  ASSERT_EQ(scored.size(), prompt.size());
  EXPECT_TRUE(scored[0].is_null());
  for (size_t i = 1; i < prompt.size(); ++i) {
    const Json of_token = scored[i][std::to_string(prompt[i])];
    EXPECT_EQ(of_token["logprob"], echoed[i]);
    EXPECT_EQ(of_token["decoded_token"], prompt.substr(i, 1));
    EXPECT_GE(scored[i].size(), 2u);
  }

  // A model that is made to end at once, and goes on all the same.
  const int end = load_tokenizer(testing::kModel)->end_of_document();
  const Json biased = {{"logit_bias", {{std::to_string(end), 100}}}};
  EXPECT_EQ(complete(biased)["text"], "");
  Json past = biased;
  past["ignore_eos"] = true;
  past["return_token_ids"] = true;
  EXPECT_EQ(complete(past)["token_ids"], Json(std::vector<int>(12, end)));
}

TEST(ChatTemplateOfAModel, IsWhatConversationsAreGivenBy) {
  const std::filesystem::path folder = fresh_folder("chat") / "model";
  std::filesystem::copy(kModel, folder);
  write_file(folder / "chat_template.jinja",
             "{% for m in messages %}{{ m.role | upper }}. {{ m.content }}<end>\n{% endfor %}"
             "{% if add_generation_prompt %}ASSISTANT. {% endif %}");
  Served served({}, 4, folder.string());
  EXPECT_EQ(served.get("/v1/models").json()["data"][0]["attnres"]["chat_template"], "jinja");
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "Speak"}}}},
                     {"temperature", 0},
                     {"max_tokens", 12}};
  const Json ids = served.post("/tokenize", chat).json()["tokens"];
  const std::string prompt = "USER. Speak<end>\nASSISTANT. ";
  EXPECT_EQ(served.post("/detokenize", {{"tokens", ids}}).json()["prompt"], prompt);
  EXPECT_EQ(served.post("/v1/chat/completions", chat).json()["choices"][0]["message"]["content"],
            greedy(prompt, 12));

  write_file(folder / "chat_template.jinja", "{% for m in messages %}");
  Served without({}, 4, folder.string());
  EXPECT_EQ(without.get("/v1/models").json()["data"][0]["attnres"]["chat_template"], "");
  const Answer refused = without.post("/v1/chat/completions", chat);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.text, HasSubstr("chat template cannot be read"));
}

TEST_F(ApiTest, SaysWhatItServesAndHowItFares) {
  const Json model = served_.get("/v1/models").json()["data"][0];
  EXPECT_EQ(model["id"], "tiny-shakespeare");
  EXPECT_EQ(model["attnres"]["context"], 256);
  EXPECT_TRUE(model["attnres"]["has_depth_weights"]);
  completion({{"max_tokens", 5}});
  EXPECT_EQ(served_.get("/health").json()["status"], "ok");
  const std::string metrics = served_.get("/metrics").text;
  for (const char* line : {"attnres_requests_total{path=\"/v1/completions\",status=\"200\"} 1\n",
                           "attnres_generated_tokens_total 5\n", "attnres_slots 4\n",
                           "attnres_time_to_first_token_seconds_count 1\n",
                           "attnres_time_per_token_seconds_count 4\n"}) {
    EXPECT_THAT(metrics, HasSubstr(line));
  }
  ASSERT_GE(served_.log.size(), 2);
  EXPECT_EQ(served_.log[1].new_tokens, 5);
  EXPECT_EQ(served_.log[1].reason, "length");
  EXPECT_EQ(served_.log[1].body, "");  // prompts are not logged
}

TEST_F(ApiTest, GoesOnWithAPromptThatItHasRead) {
  completion({{"max_tokens", 1}});
  const Json reply = completion({{"prompt", kPrompt + "you"}, {"max_tokens", 1}});
  EXPECT_GT(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 15);
}

TEST_F(ApiTest, TakesSeedsOfSixtyFourBits) {
  const auto text = [&](const Json& seed) {
    return completion(
        {{"temperature", 1}, {"seed", seed}, {"max_tokens", 20}})["choices"][0]["text"];
  };
  EXPECT_EQ(text(uint64_t{1} << 63), text(INT64_MIN));  // the same bits
  EXPECT_NE(text(uint64_t{1} << 63), text((uint64_t{1} << 63) + 1));
  EXPECT_EQ(text(UINT64_MAX), text(-1));
  for (const char* seed : {"18446744073709551616", "-9223372036854775809", "1.5", "\"a\""}) {
    const Answer answer =
        served_.ask({.method = "POST",
                     .path = "/v1/completions",
                     .body = fmt::format(R"({{"prompt": "a", "seed": {}}})", seed)});
    EXPECT_EQ(answer.status, 400) << seed;
    EXPECT_EQ(answer.param(), "seed") << seed;
    EXPECT_THAT(answer.text, HasSubstr("-2^63 to 2^64 - 1")) << seed;
  }
}

// The least share that there is has the likeliest token alone.
TEST_F(ApiTest, TakesATopPOfZeroForTheLikeliestToken) {
  const auto text = [&](const Json& fields) {
    Json sampled = {{"temperature", 1}, {"seed", 3}, {"max_tokens", 30}};
    sampled.update(fields);
    return completion(sampled)["choices"][0]["text"];
  };
  EXPECT_EQ(text({{"top_p", 0}}), greedy(kPrompt, 30));
  EXPECT_NE(text({{"top_p", 1}}), greedy(kPrompt, 30));
}

TEST_F(ApiTest, RetrievesItsModelByName) {
  const Answer answer = served_.get("/v1/models/tiny-shakespeare");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.json(), served_.get("/v1/models").json()["data"][0]);
  const Answer other = served_.get("/v1/models/gpt-5");
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(other.code(), "model_not_found");
  EXPECT_EQ(other.param(), "model");
  EXPECT_EQ(served_.post("/v1/models/tiny-shakespeare", Json::object()).status, 405);
  EXPECT_THAT(served_.get("/metrics").text,
              HasSubstr("attnres_requests_total{path=\"/v1/models/{model}\",status=\"404\"} 1\n"));
}

// So that clients and proxies do not take it for dead while a prompt is read.
TEST(Api, SaysNowAndThenThatAStreamIsAlive) {
  const Json body = {{"prompt", kPrompt}, {"temperature", 0}, {"max_tokens", 10}, {"stream", true}};
  ApiSettings settings;
  settings.limits.comment_seconds = 1e-9;  // there is a wait in ten tokens
  Served talkative(settings), silent;
  std::string text = talkative.post("/v1/completions", body).text;
  const std::string comment = ": still at work\n\n";
  EXPECT_THAT(text, HasSubstr(comment));
  EXPECT_THAT(silent.post("/v1/completions", body).text, Not(HasSubstr(comment)));
  size_t at;
  while ((at = text.find(comment)) != std::string::npos) text.erase(at, comment.size());
  std::string said;
  Answer without;
  without.text = text;
  for (const std::string& event : without.events()) {
    if (event != "[DONE]") said += Json::parse(event)["choices"][0]["text"];
  }
  EXPECT_EQ(said, greedy(kPrompt, 10));
}

TEST(Api, GivesItsPageWithoutAKey) {
  Served served({.api_key = "secret"});
  const Answer page = served.get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.type, "text/html; charset=utf-8");
  EXPECT_EQ(page.text, read_file(ATTNRES_SOURCE_DIR "/attnres/serve/page.html"));
  EXPECT_THAT(page.headers.at("Content-Security-Policy"), HasSubstr("default-src 'none'"));
  EXPECT_LT(page.text.size(), 200'000);
}

TEST(Api, DescribesItsEndpoints) {
  Served served({.api_key = "secret"});
  const Answer described = served.get("/openapi.json");
  EXPECT_EQ(described.type, "application/json");
  const Json document = described.json();
  std::set<std::string> paths;
  Served open;
  for (const auto& [path, methods] : document["paths"].items()) {
    paths.insert(path);
    for (const std::string method : {"GET", "POST"}) {
      const std::string key = method == "GET" ? "get" : "post";
      EXPECT_EQ(open.ask({.method = method, .path = path, .body = "{}"}).status == 405,
                !methods.contains(key))
          << method << " " << path;
    }
  }
  EXPECT_THAT(open.get("/nothing").text,
              HasSubstr(fmt::format("; there is {}\"", fmt::join(paths, ", "))));
}

}  // namespace
}  // namespace attnres::api_test
