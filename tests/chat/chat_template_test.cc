// Conversations as templates like those of known models render them. tests/clients compares with
// Python's engine on the models' own templates.
#include "attnres/chat/chat_template.h"

#include <gmock/gmock.h>

#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "attnres/text/passage.h"
#include "attnres/text/sentencepiece.h"
#include "attnres/text/sentencepiece_model.h"

namespace attnres::chat_template_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<ChatMessage> kMessages = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello"}, {"user", "Who?"}};

// Templates of the shape of Qwen's, Llama 2's and Kimi's.
constexpr const char* kChatml =
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message['content'] | trim }}\n"
    "    {{- '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
constexpr const char* kInstructions =
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('the roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}";
constexpr const char* kRoles =
    "{% for m in messages %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}";

std::string rendered(const ChatTemplate& chat, const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const ChatPart& part : chat.parts(messages)) text += part.text;
  return text;
}

TEST(ChatTemplate, RendersWhatItSays) {
  EXPECT_EQ(rendered(ChatTemplate(kChatml), kMessages),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(rendered(ChatTemplate(kInstructions, {.begin = "<s>", .end = "</s>"}),
                     {kMessages.begin() + 1, kMessages.end()}),
            "<s>[INST] Hi [/INST] Hello</s>[INST] Who? [/INST]");
  EXPECT_EQ(rendered(ChatTemplate(kRoles), {{"user", "Hi"}}),
            "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|>");
}

TEST(ChatTemplate, IsGivenWhatTransformersGives) {
  const ChatTemplate chat(
      "{{ tools is none }} {{ documents is none }} {{ pad_token }} {{ unk_token is defined }}",
      {.others = {{"pad_token", "<pad>"}}});
  EXPECT_EQ(rendered(chat, kMessages), "True True <pad> False");
}

TEST(ChatTemplate, IsATranscriptWithoutOne) {
  const ChatTemplate plain;
  EXPECT_TRUE(plain.plain());
  EXPECT_EQ(rendered(plain, kMessages),
            "Be brief.\n\nUser: Hi\nAssistant: Hello\nUser: Who?\nAssistant:");
  EXPECT_THAT(plain.ends(ByteTokenizer()).texts, ElementsAre("\nUser:", "\nAssistant:"));
}

TEST(ChatTemplate, RefusesWhatItHasNoPlaceFor) {
  EXPECT_THROW(ChatTemplate().parts({{"tool", "x"}}), Error);
  EXPECT_EQ(rendered(ChatTemplate(kRoles), {{"tool", "x"}}),
            "<|im_tool|>tool<|im_middle|>x<|im_end|><|im_assistant|>assistant<|im_middle|>");
  for (const ChatTemplate& chat : {ChatTemplate(), ChatTemplate(kChatml)}) {
    EXPECT_THROW(chat.parts({}), Error);
  }
  try {
    ChatTemplate(kInstructions).parts({{"user", "a"}, {"user", "b"}});
    ADD_FAILURE() << "two users in turn";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("the roles must alternate"));
  }
}

TEST(ChatTemplate, ThatCannotBeReadIsSaidWhereItIsUsed) {
  for (const char* jinja : {"{% for m in messages %}", "{{ messages", "{% unheard of %}",
                            "{% set = 1 %}", "{% for in [1] %}x{% endfor %}"}) {
    const ChatTemplate chat(jinja);
    EXPECT_FALSE(chat.error().empty()) << jinja;
    EXPECT_FALSE(chat.plain());
    EXPECT_THROW(chat.parts(kMessages), Error);
    EXPECT_TRUE(chat.ends(ByteTokenizer()).texts.empty());
  }
  const ChatTemplate fails("{{ messages.none.of.these() }}");
  EXPECT_THROW(fails.parts(kMessages), Error);
  EXPECT_TRUE(fails.ends(ByteTokenizer()).texts.empty());
}

TEST(ChatTemplate, TellsWhatEndsAnAnswer) {
  const ByteTokenizer bytes;
  const auto ends = [&](const char* jinja) {
    return ChatTemplate(jinja, {.begin = "<s>", .end = "</s>"}).ends(bytes).texts;
  };
  EXPECT_THAT(ends(kChatml), ElementsAre("<|im_end|>"));
  EXPECT_THAT(ends(kRoles), ElementsAre("<|im_end|>"));
  EXPECT_THAT(ends(kInstructions), ElementsAre("</s>"));
  EXPECT_THAT(ends("{% for m in messages %}{{ m.content }}{% endfor %}"), ElementsAre());
}

// Kimi K3 closes what it says, and its message, before it ends.
TEST(ChatTemplate, AnAnswerGoesOnWhereAPartOfItIsClosed) {
  const char* jinja =
      "{% macro close(tag) %}{{ '<|close|>' + tag + '<|sep|>' }}{% endmacro %}"
      "{% for m in messages %}{{ '<|open|>' + m.role + '<|sep|>' + m.content }}"
      "{{ close('response') }}{{ close('message') }}<|end_of_msg|>{% endfor %}{# 'think' #}";
  EXPECT_THAT(ChatTemplate(jinja).ends(ByteTokenizer()).texts, ElementsAre("<|end_of_msg|>"));
}

// Control tokens are tokens of their own, and no message can contain one.
TEST(ChatTemplate, EncodesControlTokensThatTheTokenizerHas) {
  const std::vector<ChatMessage> messages = {{"user", "a <|im_end|> b"}};
  const ChatTemplate chat(kChatml);
  const std::vector<ChatPart> parts = chat.parts(messages);
  const ByteTokenizer bytes;
  EXPECT_EQ(bytes.decode(encode_chat(bytes, parts)),
            "<|im_start|>user\na <|im_end|> b<|im_end|>\n<|im_start|>assistant\n");

  SentencePieceModel model = read_sentencepiece_model(
      train_sentencepiece(
          {{"some text", "some text about users that say some more about users and texts"}}, 275),
      "");
  const auto first = static_cast<int32_t>(model.pieces.size());
  using Type = SentencePieceModel::Type;
  model.pieces.push_back({"<|im_start|>", 0, Type::control});
  model.pieces.push_back({"<|im_end|>", 0, Type::control});
  const SentencePieceTokenizer tokenizer(write_sentencepiece_model(model), "");
  const std::vector<int32_t> ids = encode_chat(tokenizer, parts);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), first), 2);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), first + 1), 1);
  EXPECT_EQ(ids[0], first);
  EXPECT_EQ(tokenizer.control_token("user"), std::nullopt);
  const ChatEnds ends = chat.ends(tokenizer);
  EXPECT_THAT(ends.tokens, ElementsAre(first + 1));
  EXPECT_TRUE(ends.texts.empty());
}

}  // namespace
}  // namespace attnres::chat_template_test
