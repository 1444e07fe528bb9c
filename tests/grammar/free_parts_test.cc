// What of an answer is free of its form: thoughts, and calls of tools.
#include "attnres/grammar/free_parts.h"

#include <gmock/gmock.h>

#include "attnres/chat/chat_template.h"
#include "attnres/grammar/answer_grammars.h"
#include "attnres/support/error.h"
#include "tests/grammar/listed_tokens.h"
#include "tests/text/test_files.h"

namespace attnres::free_parts_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ListedTokens;
using Tokens = std::vector<int32_t>;

// The form is always one text.
class FreePartsTest : public ::testing::Test {
 protected:
  std::unique_ptr<ConstraintState> after(const Tokens& tokens) {
    auto state =
        grammars_
            .prepare(
                {.kind = AnswerGrammar::Kind::choice, .choices = {form_}, .free_parts = parts_})
            ->start();
    for (const int32_t token : tokens) state->accept(token);
    return state;
  }
  // The tokens that may come next; -1: the end.
  Tokens next(const Tokens& tokens) {
    const auto state = after(tokens);
    const AllowedTokens allowed = state->allowed();
    Tokens next;
    if (allowed.end) next.push_back(-1);
    for (int32_t id = 0; id < tokenizer_.vocab_size(); ++id) {
      if (allowed[id]) next.push_back(id);
    }
    EXPECT_EQ(allowed.none, next.empty() || next == Tokens{-1});
    return next;
  }

  // Control tokens are <5>, <6> and <7>.
  const ListedTokens tokenizer_{{"a", "b", "</", "end", ">", "", "", "", ">\n", ">b"}};
  const Tokens all_ = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  AnswerGrammars grammars_{tokenizer_};
  std::string form_ = "b";
  std::vector<FreePart> parts_;
};

TEST_F(FreePartsTest, FormsBeginAtOnceWithoutAny) {
  EXPECT_THAT(next({}), ElementsAre(1));
  EXPECT_THAT(next({1}), ElementsAre(-1));
  EXPECT_THROW(after({0}), Error);
}

TEST_F(FreePartsTest, AnAnswerMayBeginWithinOne) {
  parts_ = {{.end = "</end>"}};
  EXPECT_EQ(next({}), all_);
  EXPECT_EQ(next({1, 2, 3, 0, 4}), all_);
  EXPECT_THAT(next({1, 2, 3, 4}), ElementsAre(1));
  EXPECT_THAT(next({2, 3, 8}), ElementsAre(1));   // with blanks after it
  EXPECT_THAT(next({2, 3, 9}), ElementsAre(-1));  // with the form after it
  EXPECT_THAT(next({2, 3, 4, 1}), ElementsAre(-1));
  form_ = "a";
  EXPECT_THAT(message_of<Error>([&] { after({2, 3, 9}); }), HasSubstr("goes on with b"));
}

TEST_F(FreePartsTest, MarksOfControlTokensAreWrittenWithThese) {
  const ListedTokens tokens({"<5>", "b", "x", "", "", ""});
  const std::vector<FreePartMarks> marks = {FreePartMarks({.end = "<5>"}, tokens)};
  FreeParts parts(marks, tokens);
  EXPECT_FALSE(parts.go_on(0));  // the same as text
  EXPECT_TRUE(parts.within());
  EXPECT_EQ(parts.go_on(5), "");
  EXPECT_FALSE(parts.within());
  EXPECT_THAT(FreePartMarks({.begin = "<5>b"}, tokens).begin, ElementsAre(5, 1));
}

TEST_F(FreePartsTest, OneMayComeBeforeTheForm) {
  parts_ = {{.begin = "<5>a", .end = "<6>"}};
  EXPECT_THAT(next({}), ElementsAre(1, 5));
  EXPECT_THAT(next({5}), ElementsAre(0));  // the rest of the mark
  EXPECT_THROW(after({5, 1}), Error);
  EXPECT_EQ(next({5, 0}), all_);
  EXPECT_EQ(next({5, 0, 1, 7}), all_);
  EXPECT_THAT(next({5, 0, 1, 7, 6}), ElementsAre(1));  // once
  EXPECT_THAT(next({5, 0, 6, 1}), ElementsAre(-1));
  EXPECT_THAT(next({1}), ElementsAre(-1));
}

TEST_F(FreePartsTest, AMarkMayBeginAsTheFormDoes) {
  form_ = "abb";
  parts_ = {{.begin = "aba", .end = "<6>"}};
  EXPECT_THAT(next({}), ElementsAre(0));
  EXPECT_THAT(next({0, 1}), ElementsAre(0, 1));
  EXPECT_THAT(next({0, 1, 1}), ElementsAre(-1));
  EXPECT_EQ(next({0, 1, 0}), all_);
  EXPECT_THAT(next({0, 1, 0, 6}), ElementsAre(0));
  EXPECT_THAT(next({0, 1, 0, 6, 0, 1}), ElementsAre(1));
}

TEST_F(FreePartsTest, OneMayBeTheRestOfTheAnswer) {
  parts_ = {{.end = "<5>"}, {.begin = "<6>"}, {.begin = "<7>", .end = "<5>", .may_end = true}};
  EXPECT_EQ(next({0}), all_);
  EXPECT_THAT(next({0, 5}), ElementsAre(1, 6, 7));
  Tokens all_and_end = all_;
  all_and_end.insert(all_and_end.begin(), -1);
  EXPECT_EQ(next({0, 5, 6}), all_and_end);
  EXPECT_EQ(next({0, 5, 6, 5, 1, 0}), all_and_end);
  EXPECT_EQ(next({0, 5, 7}), all_and_end);
  EXPECT_THAT(next({0, 5, 7, 5}), ElementsAre(1));  // and no earlier one again
  EXPECT_THAT(next({0, 5, 1}), ElementsAre(-1));
}

TEST_F(FreePartsTest, AreThoseOfAReply) {
  using Within = ReplyPlan::Within;
  const CallForm calls = {
      .section = "<calls>", .begin = "<call>", .head_end = "", .end = "</call>"};
  const CallForm call = {.begin = "<call>", .head_end = "", .end = "</call>"};
  const ReplyFormat thinks = {.thought = "<think>", .thought_end = "</think>"};
  ReplyFormat thinks_and_calls = thinks;
  thinks_and_calls.calls = calls;
  const ReplyFormat marked = {
      .thought = "<t>", .thought_end = "</t>", .answer = "<a>", .answer_end = "</a>"};
  ReplyFormat marked_and_calls = marked;
  marked_and_calls.calls = call;
  const auto parts = [](ReplyFormat format, Within within) {
    return free_parts_of({.format = std::move(format), .tools = {}, .within = within});
  };
  ReplyPlan thought_is_over{.format = thinks};
  thought_is_over.has_thought = true;
  EXPECT_THAT(free_parts_of(thought_is_over), IsEmpty());
  const FreePart may_think = {.begin = "<think>", .end = "</think>"};
  EXPECT_THAT(parts({}, Within::answer), IsEmpty());
  EXPECT_THAT(parts(thinks, Within::answer), ElementsAre(may_think));
  EXPECT_THAT(parts(thinks, Within::thought), ElementsAre(FreePart{.end = "</think>"}));
  EXPECT_THAT(parts(thinks_and_calls, Within::answer),
              ElementsAre(may_think, FreePart{.begin = "<calls>"}));
  EXPECT_THAT(parts({.calls = call}, Within::answer), ElementsAre(FreePart{.begin = "<call>"}));
  for (const Within within : {Within::thought, Within::nothing}) {
    EXPECT_THAT(parts(marked, within), ElementsAre(FreePart{.end = "<a>"}));
    EXPECT_THAT(parts(marked_and_calls, within),
                ElementsAre(FreePart{.end = "<a>", .may_end = true}));
  }
  EXPECT_THAT(parts(marked, Within::answer), IsEmpty());
}

}  // namespace
}  // namespace attnres::free_parts_test
