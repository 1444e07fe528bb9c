// Conversations in the formats that models were taught, as their own templates render them.
#include "attnres/text/chat_template.h"

#include <gtest/gtest.h>

#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "attnres/text/corpus.h"
#include "attnres/text/sentencepiece.h"
#include "attnres/text/sentencepiece_model.h"

namespace attnres::chat_template_test {
namespace {

const std::vector<ChatMessage> kMessages = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello"}, {"user", "Who?"}};

std::string rendered(ChatFormat format, const std::vector<ChatMessage>& messages = kMessages) {
  std::string text;
  for (const ChatPart& part : chat_parts(format, messages)) text += part.text;
  return text;
}

TEST(ChatTemplate, RendersAsModelsWereTaught) {
  EXPECT_EQ(rendered(ChatFormat::plain),
            "Be brief.\n\nUser: Hi\nAssistant: Hello\nUser: Who?\nAssistant:");
  EXPECT_EQ(rendered(ChatFormat::chatml),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(
      rendered(ChatFormat::llama2),
      "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello </s><s>[INST] Who? [/INST]");
  EXPECT_EQ(rendered(ChatFormat::llama3),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(rendered(ChatFormat::kimi),
            "<|im_system|>system<|im_middle|>Be brief.<|im_end|><|im_user|>user<|im_middle|>Hi"
            "<|im_end|><|im_assistant|>assistant<|im_middle|>Hello<|im_end|><|im_user|>user"
            "<|im_middle|>Who?<|im_end|><|im_assistant|>assistant<|im_middle|>");
}

TEST(ChatTemplate, IsToldByItsControlTokens) {
  const auto told = [](const char* jinja) { return recognize_chat_format(jinja); };
  EXPECT_EQ(told(""), ChatFormat::plain);
  EXPECT_EQ(told("{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + "
                 "'<|im_end|>' + '\\n'}}{% endfor %}"),
            ChatFormat::chatml);
  EXPECT_EQ(told("{{'<|im_user|>user<|im_middle|>' + content + '<|im_end|>'}}"), ChatFormat::kimi);
  EXPECT_EQ(told("{{ bos_token + '[INST] ' + content + ' [/INST]' }}"), ChatFormat::llama2);
  EXPECT_EQ(told("{{ '<|start_header_id|>' + role + '<|end_header_id|>' }}"), ChatFormat::llama3);
  EXPECT_EQ(told("{{ '<start_of_turn>' + role }}"), std::nullopt);
}

TEST(ChatTemplate, RefusesWhatAFormatHasNoPlaceFor) {
  for (const ChatFormat format : {ChatFormat::plain, ChatFormat::chatml, ChatFormat::llama2,
                                  ChatFormat::llama3, ChatFormat::kimi}) {
    EXPECT_THROW(rendered(format, {{"tool", "x"}}), Error);
    EXPECT_THROW(rendered(format, {}), Error);
  }
  EXPECT_THROW(rendered(ChatFormat::llama2, {{"user", "a"}, {"user", "b"}}), Error);
  EXPECT_THROW(rendered(ChatFormat::llama2, {{"user", "a"}, {"system", "b"}}), Error);
  EXPECT_THROW(rendered(ChatFormat::llama2, {{"user", "a"}, {"assistant", "b"}}), Error);
}

// Control tokens are tokens of their own, and no message can contain one.
TEST(ChatTemplate, EncodesControlTokensThatTheTokenizerHas) {
  const std::vector<ChatMessage> messages = {{"user", "a <|im_end|> b"}};
  const std::vector<ChatPart> parts = chat_parts(ChatFormat::chatml, messages);
  const ByteTokenizer bytes;
  EXPECT_EQ(bytes.decode(encode_chat(bytes, parts)),
            "<|im_start|>user\na <|im_end|> b<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(chat_ends(ChatFormat::chatml, bytes).texts, std::vector<std::string>{"<|im_end|>"});

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
  const ChatEnds ends = chat_ends(ChatFormat::chatml, tokenizer);
  EXPECT_EQ(ends.tokens, std::vector<int64_t>{first + 1});
  EXPECT_TRUE(ends.texts.empty());
}

}  // namespace
}  // namespace attnres::chat_template_test
