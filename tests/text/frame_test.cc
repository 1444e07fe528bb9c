// What stands around a text: what transformers puts there (tests/interop/make_frame_fixtures.py),
// and what SentencePiece does.
#include <gmock/gmock.h>
#include <sentencepiece_processor.h>

#include <nlohmann/json.hpp>

#include "attnres/chat/chat_template.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"
#include "attnres/text/bytes.h"
#include "attnres/text/hugging_face/bpe_tokenizer.h"
#include "attnres/text/passage.h"
#include "attnres/text/sentencepiece.h"
#include "tests/text/test_files.h"

namespace attnres::frame_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ids = std::vector<int32_t>;

const fs::path kFixtures = fs::path(ATTNRES_SOURCE_DIR) / "tests/fixtures/tokenizers";

// The tokenizer of a folder of fixtures with another post-processor and tokenizer_config.json.
fs::path folder_with(const std::string& name, const Json& post_processor, const Json& config) {
  Json tokenizer = read_json(kFixtures / name / "tokenizer.json");
  tokenizer["post_processor"] = post_processor;
  const fs::path folder = fresh_folder(name);
  write_text(folder / "tokenizer.json", tokenizer.dump());
  write_text(folder / "tokenizer_config.json", config.dump());
  return folder;
}

std::unique_ptr<Tokenizer> load(const std::string& name, const Json& post_processor,
                                const Json& config) {
  return load_tokenizer(folder_with(name, post_processor, config));
}

Ids joined(Ids ids, const Ids& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

TEST(TextFrame, IsThatOfTransformers) {
  int framed = 0;
  for (const Json& given : read_json(kFixtures / "frames.json")) {
    SCOPED_TRACE(given["post_processor"].dump());
    const auto tokenizer = load(given["tokenizer"], given["post_processor"], given["config"]);
    for (const Json& text : given["texts"]) {
      const std::string characters = text["text"];
      const auto expected = text["ids"].get<Ids>();
      EXPECT_EQ(encode_framed(characters, *tokenizer), expected) << characters;
      // Of a prompt what would end it is left out.
      const TextFrame& frame = tokenizer->frame();
      Ids prompt(expected.begin(), expected.end() - std::ssize(frame.after));
      if (prompt.empty()) prompt = {tokenizer->end_of_document()};
      EXPECT_EQ(prompt_ids(characters, *tokenizer), prompt) << characters;
    }
    framed += tokenizer->frame().empty() ? 0 : 1;
    const fs::path saved = fresh_folder("saved");
    tokenizer->save(saved);
    EXPECT_EQ(load_tokenizer(saved)->frame().before, tokenizer->frame().before);
    EXPECT_EQ(load_tokenizer(saved)->frame().after, tokenizer->frame().after);
  }
  EXPECT_EQ(framed, 9);
}

// As transformers 4 and llama.cpp's converter do of files without a template, such as DeepSeek's.
TEST(TextFrame, HasWhatTheConfigurationAdds) {
  const Json names = {{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}};
  const auto with = [&](const Json& more) {
    Json config = names;
    config.update(more);
    return load("llama2", nullptr, config);
  };
  EXPECT_THAT(with(Json::object())->frame().before, IsEmpty());
  EXPECT_EQ(with(Json::object())->begin_of_text(), 1);
  const auto both = with({{"add_bos_token", true}, {"add_eos_token", true}});
  EXPECT_THAT(both->frame().before, ElementsAre(1));
  EXPECT_THAT(both->frame().after, ElementsAre(2));
  EXPECT_THAT(with({{"add_bos_token", false}})->frame().before, IsEmpty());
  EXPECT_THAT(with({{"add_bos_token", true}, {"bos_token", nullptr}})->frame().before, IsEmpty());
  EXPECT_THAT(message_of<UnreadTokenizer>([&] {
                with({{"add_bos_token", true}, {"bos_token", "<odd>"}});
              }),
              AllOf(HasSubstr("'<odd>' (bos_token"), HasSubstr("not in the vocabulary")));
}

TEST(TextFrame, IsNamedInASpecialTokensMap) {
  const fs::path folder = folder_with("llama2", nullptr, {{"add_bos_token", true}});
  write_text(folder / "special_tokens_map.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  EXPECT_THAT(load_tokenizer(folder)->frame().before, ElementsAre(1));
}

TEST(TextFrame, StandsBeforeATextOnce) {
  const auto llama = load_tokenizer(kFixtures / "llama3");
  const Ids word = llama->encode("word");
  EXPECT_EQ(prompt_ids("word", *llama), joined({0}, word));
  EXPECT_EQ(prompt_ids("<|begin_of_text|>word", *llama), joined({0}, word));
  EXPECT_EQ(encode_framed("<|begin_of_text|>word", *llama), joined({0}, word));
  EXPECT_THAT(prompt_ids("", *llama), ElementsAre(0));
  EXPECT_THAT(prompt_ids("<|begin_of_text|>", *llama), ElementsAre(0));
  // Elsewhere its name is text.
  EXPECT_THAT(prompt_ids("a<|begin_of_text|>", *llama), ::testing::SizeIs(::testing::Gt(4U)));

  const auto gpt2 = load_tokenizer(kFixtures / "gpt2");
  EXPECT_EQ(prompt_ids("word", *gpt2), gpt2->encode("word"));
  EXPECT_THAT(prompt_ids("", *gpt2), ElementsAre(gpt2->end_of_document()));
  EXPECT_THAT(encode_framed("", *gpt2), IsEmpty());
}

TEST(TextFrame, RefusesTemplatesThatCannotBe) {
  const Json text = {{"Sequence", {{"id", "A"}}}}, begin = {{"SpecialToken", {{"id", "<s>"}}}},
             other = {{"SpecialToken", {{"id", "<t>"}}}};
  const auto refusal = [&](const Json& single, const Json& ids) {
    const Json post = {{"type", "TemplateProcessing"},
                       {"single", single},
                       {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", ids}}}}}};
    return message_of<UnreadTokenizer>([&] { load("llama2", post, {{"eos_token", "</s>"}}); });
  };
  EXPECT_THAT(refusal(Json::array({begin}), Json::array({1})),
              HasSubstr("post_processor.single: expected one text"));
  EXPECT_THAT(refusal(Json::array({text, text}), Json::array({1})), HasSubstr("expected one text"));
  EXPECT_THAT(refusal(Json::array({begin, text}), Json::array({50000})),
              HasSubstr("ids[0]: expected a token"));
  EXPECT_THAT(refusal(Json::array({begin, text}), "one"), HasSubstr("ids: expected a list"));
  EXPECT_THAT(refusal(Json::array({other, text}), Json::array({1})), HasSubstr("<t>"));
  EXPECT_THAT(message_of<UnreadTokenizer>([&] {
                load("llama2", {{"type", "RobertaProcessing"}}, {{"eos_token", "</s>"}});
              }),
              HasSubstr("post_processor.type: expected TemplateProcessing"));
}

std::string sentencepiece_model() {
  const std::string text = "the cat and the hat and the bat sat on the mat";
  return train_sentencepiece({{"words.txt", text}}, 285);
}

std::unique_ptr<Tokenizer> load_sentencepiece(const Json& config) {
  const fs::path folder = fresh_folder("sentencepiece");
  write_text(folder / "tokenizer.model", sentencepiece_model());
  if (!config.is_null()) write_text(folder / "tokenizer_config.json", config.dump());
  return load_tokenizer(folder);
}

TEST(TextFrame, IsThatOfSentencePiece) {
  const auto theirs = [](const std::string& options, const std::string& text) {
    sentencepiece::SentencePieceProcessor processor;
    EXPECT_TRUE(processor.LoadFromSerializedProto(sentencepiece_model()).ok());
    EXPECT_TRUE(processor.SetEncodeExtraOptions(options).ok());
    return processor.EncodeAsIds(text);
  };
  const auto begun = load_sentencepiece({{"add_bos_token", true}});
  const auto both = load_sentencepiece({{"add_bos_token", true}, {"add_eos_token", true}});
  for (const std::string text : {"the cat", ""}) {
    EXPECT_EQ(encode_framed(text, *begun), theirs("bos", text));
    EXPECT_EQ(encode_framed(text, *both), theirs("bos:eos", text));
    EXPECT_EQ(prompt_ids(text, *both), theirs("bos", text));
  }
  EXPECT_EQ(begun->begin_of_text_name(), "<s>");
  EXPECT_EQ(load_sentencepiece({{"add_bos_token", false}})->begin_of_text_name(), "<s>");
  EXPECT_EQ(prompt_ids("<s>the cat", *begun), theirs("bos", "the cat"));
  // As LlamaTokenizer is documented, and llama.cpp has it: it begins texts unless told otherwise.
  EXPECT_THAT(load_sentencepiece(nullptr)->frame().before, ElementsAre(1));
  EXPECT_THAT(load_sentencepiece({{"add_bos_token", false}})->frame().before, IsEmpty());
  EXPECT_THAT(load_sentencepiece({{"bos_token", "</s>"}})->frame().before, ElementsAre(2));
  EXPECT_THAT(message_of<UnreadTokenizer>([] {
                load_sentencepiece({{"bos_token", "<odd>"}});
              }),
              HasSubstr("<odd>"));
}

// What attnres trains has seen texts after the end of another only.
TEST(TextFrame, IsEmptyOfWhatIsTrainedHere) {
  const std::string text = "the cat and the hat and the bat sat on the mat";
  for (const auto& [kind, size] : {std::pair("bytes", 256), {"bpe", 275}, {"sentencepiece", 285}}) {
    const auto tokenizer = make_tokenizer({kind, size}, {{"words.txt", text}});
    const fs::path folder = fresh_folder(kind);
    tokenizer->save(folder);
    EXPECT_TRUE(tokenizer->frame().empty()) << kind;
    EXPECT_TRUE(load_tokenizer(folder)->frame().empty()) << kind;
    EXPECT_THAT(prompt_ids("", *tokenizer), ElementsAre(tokenizer->end_of_document()));
  }
}

// A template writes its own; a transcript is a text like any other.
TEST(TextFrame, StandsBeforeTranscripts) {
  const auto llama = load_tokenizer(kFixtures / "llama3");
  const std::vector<ChatMessage> question = {{"user", "word"}};
  const Ids plain = chat_prompt_ids(question, ChatTemplate(), *llama);
  EXPECT_EQ(plain, joined({0}, llama->encode("User: word\nAssistant:")));
  const ChatTemplate own("{{ bos_token }}{{ messages[0].content }}",
                         {.begin = "<|begin_of_text|>"});
  EXPECT_EQ(chat_prompt_ids(question, own, *llama), joined({0}, llama->encode("word")));
  const ChatTemplate none("{{ messages[0].content }}");
  EXPECT_EQ(chat_prompt_ids(question, none, *llama), llama->encode("word"));
}

}  // namespace
}  // namespace attnres::frame_test
