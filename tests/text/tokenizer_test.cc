#include "attnres/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "attnres/support/config.h"
#include "attnres/support/file.h"
#include "attnres/support/random.h"
#include "attnres/text/bytes.h"
#include "attnres/text/passage.h"
#include "attnres/text/sentencepiece.h"
#include "attnres/text/utf8.h"
#include "tests/text/test_files.h"

namespace attnres::tokenizer_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Text to learn tokens from: lines of a few hundred different words, indented, some with tabs.
std::string learnable_text() {
  const RandomStream random(7, "words");
  std::string text;
  for (uint64_t line = 0; line < 400; ++line) {
    text += std::string(random.below(4, 100 * line) * 2, ' ');
    if (random.below(5, 100 * line + 1) == 0) text += '\t';
    for (uint64_t word = 0; word < 8; ++word) {
      const uint64_t letters = random.below(300, 100 * line + 10 + word);
      text += {static_cast<char>('a' + letters % 20), static_cast<char>('a' + letters / 20), 'e'};
      text += word % 3 == 0 ? "tion " : " ";
    }
    text += "größer <s> <0x41> ▅ ▁\n";
  }
  return text;
}

std::unique_ptr<SentencePieceTokenizer> trained(int64_t vocab_size = 400) {
  static const std::string text = learnable_text();
  return std::make_unique<SentencePieceTokenizer>(
      train_sentencepiece({{"words.txt", text}}, vocab_size), "trained");
}

std::unique_ptr<Tokenizer> make(const std::string& kind) {
  if (kind == "bytes") return std::make_unique<ByteTokenizer>();
  if (kind == "bpe") return make_tokenizer({"bpe", 400}, {{"words.txt", learnable_text()}});
  return trained();
}

const char* const kTexts[] = {
    "",
    " ",
    "a",
    "word",
    "  two leading, two trailing  ",
    "\n",
    "\n\n\n",
    "line\n    indented\n\ttab\r\n\r",
    "größer 日本語 🙂🏽‍👩 e\u0301 \u00e9 ﬁ Å Å",
    "\u00a0\u2003\u3000\u200b\ufeff",
    "▁▁ ▁a▁ ▅ \uFFFD",
    "<s></s><unk> <0x41><0x0A>",
    "\U0010FFFF\U00010000\u0800\u0080",
};

class AnyTokenizer : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, AnyTokenizer, ::testing::Values("bytes", "sentencepiece", "bpe"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(AnyTokenizer, LosesNothing) {
  const auto tokenizer = make(GetParam());
  for (const std::string text : kTexts) {
    const auto ids = tokenizer->encode(text);
    EXPECT_EQ(tokenizer->decode(ids), text);
    std::string joined;
    for (const int32_t id : ids) {
      ASSERT_GE(id, 0);
      ASSERT_LT(id, tokenizer->vocab_size());
      joined += tokenizer->token_text(id);
    }
    EXPECT_EQ(joined, text);
  }
  const std::string with_zero("a\0b\0", 4);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(with_zero)), with_zero);
}

TEST_P(AnyTokenizer, LosesNothingOfRandomUnicode) {
  const auto tokenizer = make(GetParam());
  const RandomStream random(3, "unicode");
  for (uint64_t round = 0; round < 200; ++round) {
    std::string bytes;
    for (uint64_t i = 0; i < 60; ++i) {
      bytes.push_back(static_cast<char>(random.below(256, round * 1000 + i)));
    }
    const std::string text = replace_invalid_utf8(bytes);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

TEST_P(AnyTokenizer, IsTheSameAfterSavingAndLoading) {
  const auto tokenizer = make(GetParam());
  const auto folder = fresh_folder("saved");
  tokenizer->save(folder);
  const auto loaded = load_tokenizer(folder);
  EXPECT_EQ(loaded->kind(), GetParam());
  EXPECT_EQ(loaded->vocab_size(), tokenizer->vocab_size());
  EXPECT_EQ(loaded->end_of_document(), tokenizer->end_of_document());
  for (const std::string text : kTexts) EXPECT_EQ(loaded->encode(text), tokenizer->encode(text));
}

TEST_P(AnyTokenizer, RefusesTokensOutsideTheVocabulary) {
  const auto tokenizer = make(GetParam());
  EXPECT_THROW(tokenizer->decode({-1}), Error);
  const auto size = static_cast<int32_t>(tokenizer->vocab_size());
  EXPECT_THAT(message_of<Error>([&] { tokenizer->token_text(size); }),
              HasSubstr(fmt::format("token {}", size)));
}

TEST_P(AnyTokenizer, StreamsWholeCharacters) {
  const auto tokenizer = make(GetParam());
  for (const std::string text : kTexts) {
    StreamDecoder stream(*tokenizer);
    std::string streamed;
    for (const int32_t id : tokenizer->encode(text)) {
      const std::string part = stream.add(id);
      EXPECT_EQ(first_invalid_utf8(part), part.size());
      streamed += part;
    }
    EXPECT_EQ(stream.finish(), "");
    EXPECT_EQ(streamed, text);
  }
}

TEST(StreamDecoder, HoldsBackAndReplaces) {
  const ByteTokenizer bytes;
  StreamDecoder stream(bytes);
  EXPECT_EQ(stream.add(0xf0), "");
  EXPECT_EQ(stream.add(0x9f), "");
  EXPECT_EQ(stream.add(0x99), "");
  EXPECT_EQ(stream.add(0x82), "🙂");
  EXPECT_EQ(stream.add(0xff), "\uFFFD");
  EXPECT_EQ(stream.add(0xe8), "");
  EXPECT_EQ(stream.add('z'), "\uFFFDz");
  EXPECT_EQ(stream.add(0xe8), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.add('a'), "a");
}

TEST(ByteTokenizer, IdsAreBytes) {
  const ByteTokenizer bytes;
  EXPECT_THAT(bytes.encode("A\xff\n"), ::testing::ElementsAre(65, 255, 10));
  std::vector<int32_t> all(256);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(bytes.encode(bytes.decode(all)), all);
}

TEST(ByteTokenizer, WritesTheBytesAsGpt2Does) {
  const auto characters = gpt2_byte_characters();
  EXPECT_EQ(characters['a'], "a");
  EXPECT_EQ(characters[' '], "Ġ");
  EXPECT_EQ(characters['\n'], "Ċ");
  EXPECT_EQ(characters[0], "Ā");
  EXPECT_EQ(characters[0x7f], "ġ");
  EXPECT_EQ(characters[0xad], "Ń");
  EXPECT_EQ(characters[0xff], "ÿ");
}

TEST(ByteTokenizer, SavesWhatHuggingFaceReads) {
  const auto folder = fresh_folder("saved");
  ByteTokenizer().save(folder);
  const Json json = read_json(folder / "tokenizer.json");
  EXPECT_EQ(json["model"]["type"], "BPE");
  EXPECT_EQ(json["model"]["vocab"]["Ġ"], 32);
  EXPECT_TRUE(json["model"]["merges"].empty());
  for (const char* part : {"pre_tokenizer", "decoder"}) {
    EXPECT_EQ(json[part]["type"], "ByteLevel");
    for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) {
      EXPECT_EQ(json[part][key], false) << part << " " << key;
    }
  }
}

// The tokenizer of a folder whose files are the byte tokenizer's, but for what `change` does.
std::unique_ptr<Tokenizer> changed_bytes(
    const std::function<void(Json& file, Json& config)>& change) {
  const auto folder = fresh_folder("changed");
  ByteTokenizer().save(folder);
  Json file = read_json(folder / "tokenizer.json");
  Json config = read_json(folder / "tokenizer_config.json");
  change(file, config);
  write_text(folder / "tokenizer.json", file.dump());
  write_text(folder / "tokenizer_config.json", config.dump());
  return load_tokenizer(folder);
}

TEST(ByteTokenizer, IsNotTakenForOthersOfTheSameTokens) {
  const auto ends_elsewhere = changed_bytes([](Json& file, Json& config) {
    file["added_tokens"] = {{{"id", 256}, {"content", "<|end|>"}, {"special", true}}};
    config["eos_token"] = "<|end|>";
  });
  EXPECT_EQ(ends_elsewhere->vocab_size(), 257);
  EXPECT_EQ(ends_elsewhere->end_of_document(), 256);
  EXPECT_EQ(ends_elsewhere->control_token("<|end|>"), 256);
  EXPECT_THAT(ends_elsewhere->encode("A\n"), ElementsAre('A', '\n'));

  const auto ends_in_a_letter = changed_bytes([](Json&, Json& config) {
    config["eos_token"] = {{"content", "a"}};
  });
  EXPECT_EQ(ends_in_a_letter->end_of_document(), 'a');

  const auto lowercase = changed_bytes([](Json& file, Json&) {
    file["normalizer"] = {{"type", "Lowercase"}};
  });
  EXPECT_THAT(lowercase->encode("Hi"), ElementsAre('h', 'i'));

  const auto with_a_word = changed_bytes([](Json& file, Json&) {
    file["added_tokens"] = {{{"id", 256}, {"content", "the"}, {"special", false}}};
  });
  EXPECT_THAT(with_a_word->encode("a the"), ElementsAre('a', ' ', 256));
  EXPECT_EQ(with_a_word->decode({'a', ' ', 256}), "a the");

  const auto with_a_space =
      changed_bytes([](Json& file, Json&) { file["pre_tokenizer"]["add_prefix_space"] = true; });
  EXPECT_THAT(with_a_space->encode("a"), ElementsAre(' ', 'a'));
}

// As transformers saves it, which lists the end of a document.
TEST(ByteTokenizer, IsReadAsOthersSaveIt) {
  const auto again = changed_bytes([](Json& file, Json& config) {
    file["added_tokens"] = {{{"id", 0}, {"content", "Ā"}, {"special", true}}};
    config["eos_token"] = {{"content", "Ā"}, {"special", true}};
  });
  EXPECT_EQ(again->kind(), "bytes");
  EXPECT_EQ(again->hash(), ByteTokenizer().hash());
  const auto unnamed = changed_bytes([](Json&, Json& config) { config.erase("eos_token"); });
  EXPECT_EQ(unnamed->kind(), "bytes");
}

TEST(SentencePiece, LearnsFromTheText) {
  const auto tokenizer = trained();
  EXPECT_EQ(tokenizer->vocab_size(), 400);
  EXPECT_EQ(tokenizer->end_of_document(), 2);
  EXPECT_EQ(tokenizer->token_text(2), "");
  const std::string text = learnable_text();
  EXPECT_LT(tokenizer->encode(text).size() * 3 / 2, text.size());
  // Also from lines with tabs and with the characters that the trainer keeps for itself.
  EXPECT_LE(tokenizer->encode("größer").size(), 3U);
}

TEST(SentencePiece, TrainingIsDeterministic) {
  EXPECT_EQ(trained()->model(), trained()->model());
  EXPECT_NE(trained(400)->model(), trained(401)->model());
}

TEST(SentencePiece, TrainingIsSilent) {
  ::testing::internal::CaptureStderr();
  trained();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(SentencePiece, TakesAVeryLongWord) {
  const std::string text = std::string(200'000, 'x') + learnable_text();
  const SentencePieceTokenizer tokenizer(train_sentencepiece({{"long.txt", text}}, 400), "long");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

TEST(SentencePiece, NamesTheLimitsOfTheVocabulary) {
  const std::string text = learnable_text();
  const std::vector<Passage> passages = {{"words.txt", text}};
  const std::string large = message_of<Error>([&] { train_sentencepiece(passages, 1'000'000); });
  EXPECT_THAT(large, HasSubstr("too large for this text, which gives at most "));
  // The number it names is right.
  const int64_t limit = std::stoll(large.substr(large.find("at most ") + 8));
  EXPECT_NO_THROW(train_sentencepiece(passages, limit));
  EXPECT_THROW(train_sentencepiece(passages, limit + 1), Error);
  EXPECT_THAT(message_of<Error>([&] { train_sentencepiece(passages, 262); }),
              HasSubstr("too small for this text"));
}

TEST(SentencePiece, RefusesTextThatIsNotUtf8) {
  EXPECT_THAT(message_of<Error>([] {
                train_sentencepiece({{"b.txt", "ab\xff", 10}}, 300);
              }),
              AllOf(HasSubstr("b.txt"), HasSubstr("byte 12")));
  EXPECT_THAT(message_of<Error>([] { trained()->encode("abc\x80"); }), HasSubstr("byte 3"));
  EXPECT_THAT(message_of<Error>([] {
                train_sentencepiece({{"b.txt", "\n\n\t"}}, 300);
              }),
              HasSubstr("no text"));
}

TEST(SentencePiece, RefusesWhatIsNoModel) {
  EXPECT_THAT(message_of<Error>([] { SentencePieceTokenizer("nonsense", "x/tokenizer.model"); }),
              HasSubstr("x/tokenizer.model: not a SentencePiece model"));
  EXPECT_THROW(SentencePieceTokenizer("", "empty"), Error);
}

// A model made by SentencePiece itself, with its own settings.
std::string foreign_model(const std::string& eos_id) {
  class OneText : public sentencepiece::SentenceIterator {
   public:
    bool done() const override { return done_; }
    void Next() override { done_ = true; }
    const std::string& value() const override { return text_; }
    sentencepiece::util::Status status() const override { return {}; }

   private:
    std::string text_ = "hello world, the world says hello";
    bool done_ = false;
  };
  OneText text;
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      {{"model_type", "bpe"}, {"vocab_size", "30"}, {"eos_id", eos_id}, {"minloglevel", "2"}},
      &text, &model);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return model;
}

TEST(SentencePiece, TakesTheLeadingSpaceOfOtherModelsAway) {
  const SentencePieceTokenizer tokenizer(foreign_model("2"), "foreign");
  const std::vector<int32_t> ids = tokenizer.encode("hello world");
  EXPECT_EQ(tokenizer.token_text(ids[0])[0], ' ');
  EXPECT_EQ(tokenizer.decode(ids), "hello world");
}

TEST(SentencePiece, NeedsAnEndOfDocument) {
  const std::string model = foreign_model("-1");
  EXPECT_THAT(message_of<Error>([&] { SentencePieceTokenizer(model, "m"); }),
              HasSubstr("no end-of-sentence token"));
}

TEST(LoadTokenizer, SaysWhatItExpected) {
  const auto folder = fresh_folder("none");
  EXPECT_THAT(message_of<Error>([&] { load_tokenizer(folder); }),
              AllOf(HasSubstr(folder.string()), HasSubstr("tokenizer.model")));
  write_text(folder / "tokenizer.json", R"({"model": {"type": "WordPiece", "vocab": {"a": 0}}})");
  EXPECT_THAT(message_of<Error>([&] { load_tokenizer(folder); }),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("WordPiece")));
  for (const char* text : {"[]", "{}", R"({"model": 3})", R"({"model": {"vocab": []}})"}) {
    write_text(folder / "tokenizer.json", text);
    EXPECT_THROW(load_tokenizer(folder), Error) << text;
  }
}

// tokenizer.json has more than tokenizer.model, where it is read.
TEST(LoadTokenizer, ChoosesAmongFiles) {
  const auto folder = fresh_folder("both");
  trained()->save(folder);
  write_text(folder / "tokenizer.json", R"({"model": {"type": "Unigram", "vocab": []}})");
  EXPECT_EQ(load_tokenizer(folder)->kind(), "sentencepiece");
  make("bpe")->save(folder);
  EXPECT_EQ(load_tokenizer(folder)->kind(), "bpe");
}

TEST(LoadTokenizer, EndsDocumentsAsTheFilesBesideItSay) {
  const auto folder = fresh_folder("ends");
  make("bpe")->save(folder);
  std::filesystem::remove(folder / "tokenizer_config.json");
  write_text(folder / "special_tokens_map.json", R"({"eos_token": {"content": "z"}})");
  const auto pairs = load_tokenizer(folder);
  EXPECT_EQ(pairs->token_text(pairs->end_of_document()), "z");

  const auto model = fresh_folder("model");
  trained()->save(model);
  EXPECT_EQ(load_tokenizer(model)->end_of_document(), 2);
  write_text(model / "tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  EXPECT_THAT(message_of<UnreadTokenizer>([&] { load_tokenizer(model); }),
              AllOf(HasSubstr("'</s>'"), HasSubstr("'<|im_end|>'"), HasSubstr("tokenizer.json")));
}

TEST(TokenizerFiles, AreThoseOfAnyTokenizer) {
  const auto folder = fresh_folder("files");
  const std::vector<std::string> tokenizers = {
      "added_tokens.json",     "chat_template.jinja", "merges.txt",
      "qwen.tiktoken",         "tekken.json",         "tiktoken.model",
      "tokenization_kimi.py",  "tokenizer.json",      "tokenizer.model",
      "tokenizer_config.json", "vocab.json"};
  for (const std::string& name : tokenizers) write_text(folder / name, name);
  for (const char* name : {"config.json", "model.safetensors", "README.md", "modeling_kimi.py",
                           "tokenizers/model", "training_state.json"}) {
    write_text(folder / name, name);
  }
  std::vector<std::string> found;
  for (const auto& file : tokenizer_files(folder)) found.push_back(file.filename().string());
  EXPECT_EQ(found, tokenizers);
}

TEST(TokenizerConfig, ChecksKindAndSize) {
  EXPECT_NO_THROW(TokenizerConfig().check());
  EXPECT_NO_THROW((TokenizerConfig{"sentencepiece", 4096}.check()));
  EXPECT_THAT(message_of<UsageError>([] {
                TokenizerConfig{"byte", 256}.check();
              }),
              AllOf(HasSubstr("mean bytes?"), HasSubstr("sentencepiece")));
  EXPECT_THAT(message_of<UsageError>([] {
                TokenizerConfig{"bytes", 512}.check();
              }),
              HasSubstr("512"));
  EXPECT_THAT(message_of<UsageError>([] {
                TokenizerConfig{"sentencepiece", 256}.check();
              }),
              HasSubstr("at least 260"));
  EXPECT_THAT(message_of<UsageError>([] {
                TokenizerConfig{"bpe", 256}.check();
              }),
              HasSubstr("at least 257"));
  const Json json = write_config(TokenizerConfig{"sentencepiece", 512});
  TokenizerConfig read;
  read_config(json, "tokenizer", read);
  EXPECT_EQ(read.kind, "sentencepiece");
  EXPECT_EQ(read.vocab_size, 512);
}

TEST(MakeTokenizer, MakesTheKindAskedFor) {
  const std::string text = learnable_text();
  EXPECT_EQ(make_tokenizer({}, {})->kind(), "bytes");
  const auto tokenizer = make_tokenizer({"sentencepiece", 380}, {{"words.txt", text}});
  EXPECT_EQ(tokenizer->kind(), "sentencepiece");
  EXPECT_EQ(tokenizer->vocab_size(), 380);
  const auto pairs = make_tokenizer({"bpe", 380}, {{"words.txt", text}});
  EXPECT_EQ(pairs->kind(), "bpe");
  EXPECT_EQ(pairs->vocab_size(), 380);
}

}  // namespace
}  // namespace attnres::tokenizer_test
