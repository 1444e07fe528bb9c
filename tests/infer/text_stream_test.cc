#include "attnres/infer/text_stream.h"

#include <gtest/gtest.h>

#include "attnres/chat/chat_template.h"
#include "attnres/chat/reply_reader.h"
#include "attnres/text/passage.h"
#include "attnres/text/sentencepiece.h"
#include "attnres/text/sentencepiece_model.h"

namespace attnres {
namespace {

const std::vector<std::string> kControl = {"<|open|>", "<|close|>", "<|sep|>", "<|other|>"};

// With Kimi K3's control tokens.
class AnswersInTokens : public ::testing::Test {
 protected:
  AnswersInTokens() {
    const std::string text = "some text about users that say some more about users and texts";
    SentencePieceModel model =
        read_sentencepiece_model(train_sentencepiece({{"a text", text}}, 275), "");
    for (const std::string& name : kControl) {
      model.pieces.push_back({name, 0, SentencePieceModel::Type::control});
    }
    tokenizer_ = std::make_unique<SentencePieceTokenizer>(write_sentencepiece_model(model), "");
  }

  // Control tokens where the text has their names.
  std::vector<int32_t> ids(const std::string& text) const {
    return encode_chat(*tokenizer_, {{text}});
  }

  std::unique_ptr<SentencePieceTokenizer> tokenizer_;
  const ReplyPlan plan_ = {.format = reply_format_of("<|open|> 'think'"),
                           .within = ReplyPlan::Within::thought};
};

TEST_F(AnswersInTokens, ArePartsByTheControlTokens) {
  TextStream stream(*tokenizer_, {}, &plan_);
  std::string text;
  for (const int32_t id :
       ids("yes<|close|>think<|sep|><|open|>response<|sep|>n<|other|>o<|close|>response<|sep|>")) {
    text += stream.add(id);
  }
  text += stream.finish();
  // A text without control tokens, as ever; and what they say.
  EXPECT_EQ(text, "yesthinkresponsenoresponse");
  std::string thought, answer;
  for (const ReplyPiece& piece : stream.take_pieces()) {
    (piece.kind == ReplyPiece::Kind::thought ? thought : answer) += piece.text;
  }
  EXPECT_EQ(thought, "yes");
  EXPECT_EQ(answer, "no");
}

TEST_F(AnswersInTokens, AStopStringEndsThemAndSpansNoControlToken) {
  TextStream stream(*tokenizer_, {"no"}, &plan_);
  std::string text;
  for (const int32_t id : ids("yes n<|other|>o n")) text += stream.add(id);
  EXPECT_FALSE(stream.stopped());
  for (const int32_t id : ids("o more")) text += stream.add(id);
  EXPECT_TRUE(stream.stopped());
  text += stream.finish();
  EXPECT_EQ(text.substr(0, 5), "yes n");
  std::string thought;
  for (const ReplyPiece& piece : stream.take_pieces()) thought += piece.text;
  EXPECT_EQ(thought, text.substr(0, thought.size()));
  EXPECT_EQ(thought.find("more"), std::string::npos);
}

TEST_F(AnswersInTokens, TheFirstTokensHaveNoPartInAStopString) {
  const std::vector<int32_t> tokens = ids("no no no");
  const auto text = [&](int64_t min_tokens) {
    TextStream stream(*tokenizer_, {"no"}, /*reply=*/nullptr, min_tokens);
    std::string text;
    for (const int32_t id : tokens) text += stream.add(id);
    return text + stream.finish();
  };
  EXPECT_EQ(text(0), "");
  const int64_t first = std::ssize(ids("n"));
  EXPECT_EQ(text(first), "no ");
  EXPECT_EQ(text(std::ssize(tokens)), "no no no");
}

}  // namespace
}  // namespace attnres
