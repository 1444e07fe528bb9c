// Bodies of requests, to every endpoint. What the server would answer with 500 is a fault.
#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attnres/chat/chat_template.h"
#include "attnres/chat/conversation.h"
#include "attnres/grammar/answer_grammars.h"
#include "attnres/serve/api.h"
#include "attnres/serve/backend.h"
#include "attnres/text/bytes.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::api_fuzz {
namespace {

using namespace testing;

// Everything but the model: bytes are its tokens, and an answer is a word.
class WordBackend : public Backend {
 public:
  const ModelDescription& model() const override { return description_; }
  int64_t context() const override { return 64; }
  void check(const TextRequest& request) const override { decode(request.ids); }
  std::vector<int32_t> prompt_ids(const std::string& text) const override { return encode(text); }
  std::vector<int32_t> encode(const std::string& text) const override {
    return tokenizer_.encode(text);
  }
  std::vector<int32_t> encode_framed(const std::string& text) const override {
    return encode(text);
  }
  std::string decode(const std::vector<int32_t>& ids) const override {
    return tokenizer_.decode(ids);
  }
  std::string token_text(int32_t id) const override { return tokenizer_.token_text(id); }
  std::shared_ptr<const TokenConstraint> constraint(const AnswerGrammar& answer) const override {
    return grammars_->prepare(answer);
  }
  TextRequest chat_request(const std::string& conversation) const override {
    const ChatTemplate plain;
    return {.ids = chat_prompt_ids(plain.rendered(parse_conversation(conversation)), plain,
                                   tokenizer_)};
  }
  std::shared_ptr<Exchange> submit(std::vector<TextRequest> sequences, const std::string&,
                                   std::function<bool()> gone) override {
    auto exchange = std::make_shared<Exchange>(std::move(gone));
    for (size_t i = 0; i < sequences.size(); ++i) {
      TextUpdate update;
      update.token = 'a';
      update.logprobs = {.chosen = -1, .top = {{.id = 'a', .logprob = -1}}};
      update.prompt_logprobs.assign(std::max<size_t>(sequences[i].ids.size(), 1) - 1,
                                    *update.logprobs);
      update.text = "a";
      update.pieces = {{.text = "a"}};
      update.stopped = StopReason::max_tokens;
      if (sequences[i].generation.mean_hidden) update.mean_hidden = {0.5};
      update.depth.weights.assign(sequences[i].ids.size(), {{0.25, 0.75}});
      exchange->hear({i, update});
    }
    return exchange;
  }
  LoopStatus status() const override { return {.slots = 1}; }

 private:
  ByteTokenizer tokenizer_;
  std::unique_ptr<AnswerGrammars> grammars_ = std::make_unique<AnswerGrammars>(tokenizer_);
  ModelDescription description_ = {.name = "word",
                                   .vocabulary = 256,
                                   .tokenizer = "bytes",
                                   .chat_template = "plain",
                                   .sites = {{.site = 1, .name = "site", .sources = {"a", "b"}}}};
};

// METHOD PATH, and the body in the next part.
HttpRequest request_of(std::string_view input) {
  const auto parts = parts_of(input, 2);
  const size_t space = std::min(parts[0].find(' '), parts[0].size());
  return {.method = std::string(parts[0].substr(0, space)),
          .path = std::string(parts[0].substr(std::min(space + 1, parts[0].size()))),
          .body = std::string(parts[1])};
}

void run(std::string_view input) {
  static WordBackend backend;
  static Api api(backend, {.limits = {.sequences = 4}}, [](const AnsweredRequest&) {});
  HttpRequest request = request_of(input);
  HttpRequest head = request;
  head.body = "";
  if (api.refusal(head)) return;
  const HttpReply reply = api(std::move(request));
  if (reply.status == 500) throw std::logic_error(reply.body);
  if (!reply.stream) return;
  std::string answer;
  reply.stream([&](std::string_view piece) {
    answer += piece;
    return true;
  });
  if (answer.find("internal_error") != std::string::npos) throw std::logic_error(answer);
}

std::vector<std::string> seeds() {
  const std::vector<std::pair<std::string, std::string>> requests = {
      {"POST /v1/completions",
       R"({"model": "word", "prompt": ["a", "b"], "max_tokens": 3, "logprobs": 2, "stop": ["x"],)"
       R"( "n": 2, "temperature": 0.5, "logit_bias": {"5": 1}, "seed": 1, "echo": true,)"
       R"( "stream": true, "stream_options": {"include_usage": true}})"},
      {"POST /v1/completions", R"({"prompt": [1, 2], "guided_regex": "a[bc]*", "top_p": 0.9})"},
      {"POST /v1/chat/completions",
       R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content":)"
       R"( [{"type": "text", "text": "q"}]}], "response_format": {"type": "json_schema",)"
       R"( "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a":)"
       R"( {"type": "integer"}}}}}})"},
      {"POST /v1/chat/completions",
       R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls":)"
       R"( [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}],)"
       R"( "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],)"
       R"( "tool_choice": "required", "reasoning_effort": "low", "top_logprobs": 2})"},
      {"POST /v1/embeddings", R"({"input": ["a", "b"], "encoding_format": "base64"})"},
      {"POST /v1/depth", R"({"prompt": "ab"})"},
      {"POST /tokenize", R"({"prompt": "ab", "return_token_strs": true})"},
      {"POST /detokenize", R"({"tokens": [97, 98]})"},
      {"GET /v1/models", ""},
      {"GET /v1/models/word", ""},
      {"GET /metrics", ""}};
  std::vector<std::string> seeds;
  for (const auto& [head, body] : requests) seeds.push_back(joined_inputs({head, body}));
  return seeds;
}

const ListedFuzzTarget kListed({"api", run, seeds});

}  // namespace
}  // namespace attnres::api_fuzz
