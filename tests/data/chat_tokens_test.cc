#include "attnres/data/chat_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "attnres/data/training_tokens.h"
#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "tests/text/test_files.h"

namespace attnres::chat_tokens_test {
namespace {

using ::testing::HasSubstr;

// The text of the tokens, what is learned in brackets; the end of document is $.
std::string shown(const std::vector<uint32_t>& tokens) {
  std::string text;
  bool learned = false;
  for (const uint32_t token : tokens) {
    const bool learns = (token & kNoTarget) == 0;
    if (learns != learned) text += learns ? "[" : "]";
    learned = learns;
    const auto c = static_cast<char>(token & ~kNoTarget);
    text += c == '\0' ? '$' : c;
  }
  return text + (learned ? "]" : "");
}

std::string learned(const char* messages, const std::string& chat_template = "") {
  return shown(chat_tokens(read_conversation(Json::parse(messages)), ChatTemplate(chat_template),
                           ByteTokenizer()));
}

// ChatML, as Qwen and SmolLM have it.
constexpr const char* kChatMl =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

TEST(ChatTokens, LearnTheAnswersAndWhatEndsThem) {
  EXPECT_EQ(learned(R"([{"role": "system", "content": "be kind"},
                        {"role": "user", "content": "hi"},
                        {"role": "assistant", "content": "hello"},
                        {"role": "user", "content": "bye"},
                        {"role": "assistant", "content": "so long"}])",
                    kChatMl),
            "<system>be kind</>\n<user>hi</>\n<assistant>[hello</>\n]"
            "<user>bye</>\n<assistant>[so long</>\n$]");
}

// A template that writes the end of document itself.
TEST(ChatTokens, EndOnce) {
  const std::string ends =
      "{% for m in messages %}{{ m.content }}{% endfor %}"
      "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}";
  const ChatTemplate chat_template(ends, {.begin = "", .end = std::string(1, '\0')});
  const auto tokens =
      chat_tokens({{"user", "a"}, {"assistant", "b"}}, chat_template, ByteTokenizer());
  EXPECT_EQ(shown(tokens), "a[b$]");
}

TEST(ChatTokens, OfAPlainTranscript) {
  EXPECT_EQ(learned(R"([{"role": "user", "content": "hi"},
                        {"role": "assistant", "content": "hello"}])"),
            "User: hi\nAssistant:[ hello\n$]");
}

TEST(ChatTokens, DoNotLearnTheLastWordOfAUser) {
  EXPECT_EQ(learned(R"([{"role": "user", "content": "hi"},
                        {"role": "assistant", "content": "hello"},
                        {"role": "user", "content": "thanks"}])",
                    kChatMl),
            "<user>hi</>\n<assistant>[hello</>\n]<user>thanks</>\n$");
}

TEST(ChatTokens, SayWhatCannotBeLearned) {
  const auto refused = [](const char* messages, const char* chat_template = kChatMl) {
    return message_of<Error>([&] { learned(messages, chat_template); });
  };
  EXPECT_THAT(refused("{}"), HasSubstr("expected a list of messages"));
  EXPECT_THAT(refused("[]"), HasSubstr("messages: there are none"));
  EXPECT_THAT(refused(R"([{"role": "user"}])"), HasSubstr("role and content"));
  EXPECT_THAT(refused(R"([{"role": "user", "content": ["hi"]}])"), HasSubstr("role and content"));
  EXPECT_THAT(refused(R"([{"role": "tool", "content": "hi"}])", ""), HasSubstr("tool"));
  EXPECT_THAT(refused(R"([{"role": "user", "content": "hi"}])"), HasSubstr("nothing to learn"));
  EXPECT_THAT(refused(R"([{"role": "assistant", "content": "hi"}])"), HasSubstr("begins with"));
  // It shows the last message only.
  EXPECT_THAT(refused(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                          {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}])",
                      "{{ messages[-1].content }}"),
              HasSubstr("changes earlier messages"));
}

}  // namespace
}  // namespace attnres::chat_tokens_test
