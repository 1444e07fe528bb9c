// Tokenizers of tests/fixtures/tokenizers against what github.com/huggingface/tokenizers makes of
// the same texts (tests/interop/make_tokenizer_fixtures.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cctype>
#include <nlohmann/json.hpp>
#include <thread>

#include "attnres/support/file.h"
#include "attnres/support/json.h"
#include "attnres/text/hugging_face/bpe_tokenizer.h"
#include "attnres/text/hugging_face/bpe_trainer.h"
#include "attnres/text/hugging_face/oniguruma.h"
#include "attnres/text/hugging_face/regex.h"
#include "attnres/text/hugging_face/tiktoken.h"
#include "attnres/text/utf8.h"
#include "tests/text/test_files.h"

namespace attnres::hugging_face_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kFixtures = fs::path(ATTNRES_SOURCE_DIR) / "tests/fixtures/tokenizers";

std::unique_ptr<BpeTokenizer> load(const fs::path& folder) {
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(folder);
  EXPECT_EQ(tokenizer->kind(), "bpe");
  return std::unique_ptr<BpeTokenizer>(&dynamic_cast<BpeTokenizer&>(*tokenizer.release()));
}

struct Expected {
  std::string text, decoded;
  std::vector<int32_t> ids, control_ids;
};

std::vector<Expected> expected_of(const fs::path& folder) {
  std::vector<Expected> all;
  for (const Json& json : read_json(folder / "expected.json")) {
    all.push_back({json["text"], json["decoded"], json["ids"], json["control_ids"]});
  }
  return all;
}

class Published : public ::testing::TestWithParam<const char*> {
 protected:
  const fs::path folder = kFixtures / GetParam();
};
INSTANTIATE_TEST_SUITE_P(Kinds, Published,
                         ::testing::Values("gpt2", "llama3", "qwen2", "smollm", "deepseek3", "kimi",
                                           "llama2", "gemma", "mistral", "accents", "splits",
                                           "prefix"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Published, GivesTheSameTokensAndTexts) {
  const auto tokenizer = load(folder);
  for (const Expected& expected : expected_of(folder)) {
    SCOPED_TRACE(expected.text);
    EXPECT_EQ(tokenizer->encode(expected.text), expected.ids);
    EXPECT_EQ(tokenizer->encode(expected.text, SpecialTokens::as_tokens), expected.control_ids);
    EXPECT_EQ(replace_invalid_utf8(tokenizer->decode(expected.control_ids)), expected.decoded);
  }
}

// The comparison sees a merge that is left out, and the last that is learned before the first.
TEST_P(Published, GivesOthersWithOtherMerges) {
  const auto tokenizer = load(folder);
  const auto differs = [&](const TokenizerJson& parts) {
    const BpeTokenizer other(parts, {{"eos_token", "</s>"}}, "other");
    const std::vector<Expected> all = expected_of(folder);
    return std::any_of(all.begin(), all.end(), [&](const Expected& expected) {
      return other.encode(expected.text) != expected.ids;
    });
  };
  TokenizerJson parts = tokenizer->parts();
  parts.added_tokens.push_back({.id = 5000, .content = "</s>", .special = true});
  EXPECT_FALSE(differs(parts));
  std::reverse(parts.merges.begin(), parts.merges.end());
  EXPECT_TRUE(differs(parts));
  parts.merges.clear();
  EXPECT_TRUE(differs(parts));
}

TEST_P(Published, IsTheSameAfterSaving) {
  const auto tokenizer = load(folder);
  const fs::path saved = fresh_folder("saved"), written = fresh_folder("written");
  tokenizer->save(saved);
  EXPECT_EQ(read_file(saved / "tokenizer.json"), read_file(folder / "tokenizer.json"));
  BpeTokenizer(tokenizer->parts(), read_json(folder / "tokenizer_config.json"), "parts")
      .save(written);
  for (const fs::path& place : {saved, written}) {
    const auto loaded = load(place);
    EXPECT_EQ(loaded->vocab_size(), tokenizer->vocab_size());
    EXPECT_EQ(loaded->end_of_document(), tokenizer->end_of_document());
    for (const Expected& expected : expected_of(folder)) {
      EXPECT_EQ(loaded->encode(expected.text), expected.ids);
    }
  }
}

TEST_P(Published, StreamsWhatItDecodes) {
  const auto tokenizer = load(folder);
  for (const Expected& expected : expected_of(folder)) {
    StreamDecoder stream(*tokenizer);
    std::string streamed;
    for (const int32_t id : expected.control_ids) streamed += stream.add(id);
    streamed += stream.finish();
    // What is taken away from a text's begin is not taken from a text that goes on.
    const size_t spaces = streamed.size() - std::min(streamed.size(), expected.decoded.size());
    EXPECT_EQ(streamed.substr(spaces), expected.decoded);
    EXPECT_EQ(streamed.substr(0, spaces).find_first_not_of(' '), std::string::npos);
  }
}

TEST_P(Published, ServesManyThreads) {
  const auto tokenizer = load(folder);
  const std::vector<Expected> all = expected_of(folder);
  std::vector<std::thread> threads;
  std::atomic<int> differences = 0;
  for (size_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (size_t i = 0; i < all.size(); ++i) {
        const Expected& expected = all[(first * 17 + i) % all.size()];
        differences += tokenizer->encode(expected.text) != expected.ids ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(differences, 0);
}

TEST_P(Published, RefusesTextThatIsNotUtf8) {
  const auto tokenizer = load(folder);
  EXPECT_THAT(message_of<Error>([&] { tokenizer->encode("ab\xff"); }), HasSubstr("byte 2"));
  EXPECT_THROW(tokenizer->decode({-1}), Error);
  EXPECT_THROW(tokenizer->token_text(static_cast<int32_t>(tokenizer->vocab_size())), Error);
}

TEST(HuggingFace, TellsControlTokens) {
  const auto tokenizer = load(kFixtures / "qwen2");
  const auto end = tokenizer->control_token("<|im_end|>");
  ASSERT_TRUE(end);
  EXPECT_EQ(tokenizer->token_text(*end), "");
  EXPECT_THAT(tokenizer->encode("<|im_end|>"), ::testing::Not(::testing::Contains(*end)));
  EXPECT_THAT(tokenizer->encode("<|im_end|>", SpecialTokens::as_tokens), ElementsAre(*end));
  EXPECT_EQ(tokenizer->control_token("<think>"), std::nullopt) << "added, but not special";
  EXPECT_EQ(tokenizer->end_of_document(), tokenizer->control_token("<|endoftext|>"));
}

// A run as long as a book takes no time that grows with its square.
TEST(HuggingFace, TakesLongRuns) {
  for (const char* name : {"gpt2", "llama3", "llama2", "gemma", "accents"}) {
    const auto tokenizer = load(kFixtures / name);
    for (const char* unit : {" ", "a", "ab", "\n", "the", "漢"}) {
      const bool is_left_out = std::string_view(name) == "accents" && std::isspace(unit[0]) != 0;
      std::string text;
      while (text.size() < 300'000) text += unit;
      EXPECT_EQ(tokenizer->encode(text).empty(), is_left_out) << name << " of " << unit;
    }
  }
}

Json file_of(const fs::path& folder) {
  return read_json(folder / "tokenizer.json");
}

std::string refusal_of(const Json& file) {
  return message_of<UnreadTokenizer>([&] {
    BpeTokenizer(read_tokenizer_json(file.dump(), "tokenizer.json"), {{"eos_token", "</s>"}}, "x");
  });
}

TEST(HuggingFace, RefusesByNameWhatIsNotRead) {
  const Json good = file_of(kFixtures / "prefix");
  const auto with = [&](const char* pointer, const Json& value) {
    Json file = good;
    file[Json::json_pointer(pointer)] = value;
    return refusal_of(file);
  };
  EXPECT_THAT(with("/model/type", "Unigram"), AllOf(HasSubstr("Unigram"), HasSubstr("BPE")));
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("dropout"));
  EXPECT_THAT(with("/model/end_of_word_suffix", "</w>"), HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(with("/normalizer/type", "Precompiled"), HasSubstr("Precompiled"));
  EXPECT_THAT(with("/pre_tokenizer/type", "BertPreTokenizer"), HasSubstr("BertPreTokenizer"));
  EXPECT_THAT(with("/post_processor", {{"type", "Odd"}}), HasSubstr("Odd"));
  EXPECT_THAT(with("/decoder/type", "WordPiece"), HasSubstr("WordPiece"));
  EXPECT_THAT(with("/decoder", nullptr), HasSubstr("decoder"));
  const Json strip = {{"type", "Strip"}, {"content", ""}, {"start", 1}, {"stop", 0}};
  EXPECT_THAT(with("/decoder", strip), HasSubstr("decoder.content"));
  const Json nothing = {{"type", "Sequence"}, {"normalizers", Json::array({nullptr})}};
  EXPECT_THAT(with("/normalizer", nothing), HasSubstr("normalizers[0]"));
  const auto splitting = [&](const char* pattern) {
    return with("/pre_tokenizer", {{"type", "Split"},
                                   {"pattern", {{"Regex", pattern}}},
                                   {"behavior", "Isolated"},
                                   {"invert", false}});
  };
  EXPECT_THAT(splitting(R"(\h+)"), HasSubstr(R"(\h)"));
  EXPECT_THAT(splitting("a(?i)b"), HasSubstr("(?i)"));
  EXPECT_THAT(splitting("(ab"), HasSubstr("the ( without a )"));
  EXPECT_THAT(splitting("[[:alpha:]]"), HasSubstr("[:"));
}

TEST(HuggingFace, RefusesWhatDoesNotFitTogether) {
  const Json good = file_of(kFixtures / "prefix");
  const auto with = [&](const char* pointer, const Json& value) {
    Json file = good;
    file[Json::json_pointer(pointer)] = value;
    return message_of<Error>([&] {
      BpeTokenizer(read_tokenizer_json(file.dump(), "f"), {{"eos_token", "</s>"}}, "f");
    });
  };
  EXPECT_THAT(with("/model/merges", Json::array({"a b c"})), HasSubstr("'a b c'"));
  EXPECT_THAT(with("/model/merges", Json::array({Json::array({"a", "ĠĠĠĠĠĠ"})})),
              HasSubstr("merge 0"));
  EXPECT_THAT(with("/model/vocab/a", -1), HasSubstr("'a'"));
  EXPECT_THAT(with("/model/vocab/a", 1 << 30), HasSubstr("it is damaged: numbers below"));
  EXPECT_THAT(with("/model/unk_token", "nothing"), HasSubstr("unk_token"));
  const auto no_end = message_of<UnreadTokenizer>([&] {
    BpeTokenizer(read_tokenizer_json(good.dump(), "f"), {{"eos_token", "<end>"}}, "f");
  });
  EXPECT_THAT(no_end, AllOf(HasSubstr("<end>"), HasSubstr("tokenizer_config.json")));
}

// A byte of a character stays what it is, whatever a later step would read in it.
TEST(HuggingFace, DecodesBytesThatAreNoCharacter) {
  Json file = file_of(kFixtures / "llama2");
  const Json bytes = {{"type", "ByteFallback"}};
  const Json spaces = {{"type", "Replace"}, {"pattern", {{"Regex", "\u00fc|x"}}}, {"content", "-"}};
  for (const Json& then : {Json{{"type", "ByteLevel"}}, spaces}) {
    file["decoder"] = {{"type", "Sequence"}, {"decoders", {bytes, then}}};
    const TokenizerJson parts = read_tokenizer_json(file.dump(), "f");
    const BpeTokenizer tokenizer(parts, {{"eos_token", "</s>"}}, "f");
    const auto token = std::find_if(parts.vocabulary.begin(), parts.vocabulary.end(),
                                    [](const auto& entry) { return entry.first == "<0xF0>"; });
    ASSERT_NE(token, parts.vocabulary.end());
    EXPECT_EQ(tokenizer.decode({token->second}), "\xf0") << then;
  }
}

TEST(TextRegex, EndsWhatWouldTakeForEver) {
  const TextRegex regex("(a|aa)+[bc]");
  const std::string text(40, 'a');
  EXPECT_THAT(message_of<Error>([&] { regex.find_all(text, [](const TextRange&) {}); }),
              HasSubstr("(a|aa)+[bc]"));
}

TEST(TextRegex, TranslatesWhatOthersWriteDifferently) {
  EXPECT_EQ(pcre2_pattern(R"(\p{Han}\p{Lu}\P{N}\p{^M})"), R"(\p{sc:Han}\p{Lu}\P{N}\P{M})");
  EXPECT_EQ(pcre2_pattern(R"([\s\d])"), R"([\p{White_Space}\p{Nd}])");
  EXPECT_EQ(pcre2_pattern(R"([\p{Ll}&&[^\p{Han}]]+)"), R"((?:(?=[^\p{sc:Han}])[\p{Ll}])+)");
  EXPECT_EQ(pcre2_pattern(R"(\p{N}{1,3}+x{,2})"), R"((?:\p{N}{1,3})+x{0,2})");
  EXPECT_EQ(pcre2_pattern(R"((ab){2}+)"), R"((?:(ab){2})+)");
  EXPECT_EQ(pcre2_pattern(R"(\v\u4e00[]a])"), R"(\x0b\x{4e00}[\]a])");
}

TEST(TextRegex, RefusesClassesThatAreNestedWithoutAnEnd) {
  EXPECT_NO_THROW(pcre2_pattern("[a[b[c]]]"));
  const std::string nested(1'000'000, '[');
  EXPECT_THAT(message_of<UnreadTokenizer>([&] { pcre2_pattern(nested); }), HasSubstr("so deep"));
}

// Kimi's file: all bytes, and "ab", "abc" and "bc" in this order.
std::string small_tiktoken() {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string file;
  for (int byte = 0; byte < 256; ++byte) {
    file += fmt::format("{}{}== {}\n", kDigits[byte >> 2], kDigits[(byte & 3) << 4], byte);
  }
  return file + "YWI= 256\nYWJj 257\nYmM= 258\n";
}

TEST(Tiktoken, MergesByRankAndNamesControlTokens) {
  const auto folder = fresh_folder("kimi");
  write_text(folder / "tiktoken.model", small_tiktoken());
  write_text(folder / "tokenizer_config.json", R"({"tokenizer_class": "TikTokenTokenizer",
      "eos_token": "[EOS]", "added_tokens_decoder": {"260": {"content": "[EOS]"}}})");
  const auto tokenizer = load(folder);
  EXPECT_EQ(tokenizer->vocab_size(), 259 + 258);
  EXPECT_EQ(tokenizer->end_of_document(), 260);
  EXPECT_EQ(tokenizer->control_token("<|reserved_token_261|>"), 261);
  EXPECT_THAT(tokenizer->encode("ab"), ElementsAre(256));
  EXPECT_THAT(tokenizer->encode("abc"), ElementsAre(257));
  EXPECT_THAT(tokenizer->encode("xbc"), ElementsAre('x', 258));
  EXPECT_THAT(tokenizer->encode("xabcbc"), ElementsAre('x', 257, 258));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("漢字 Ab'S 12345\n")), "漢字 Ab'S 12345\n");
  const auto saved = fresh_folder("saved");
  tokenizer->save(saved);
  EXPECT_EQ(read_file(saved / "tiktoken.model"), small_tiktoken());
  EXPECT_EQ(load(saved)->end_of_document(), 260);
}

TEST(Tiktoken, RefusesWhatItDoesNotKnow) {
  const Json kimi = {{"tokenizer_class", "TikTokenTokenizer"}};
  EXPECT_THAT(message_of<UnreadTokenizer>([&] {
                read_tiktoken(small_tiktoken(), {{"tokenizer_class", "Other"}}, "t");
              }),
              HasSubstr("Other"));
  EXPECT_THAT(message_of<Error>([&] { read_tiktoken("QQ== 0\nQg== 2\n", kimi, "t"); }),
              AllOf(HasSubstr("line 2"), HasSubstr("rank 1")));
  EXPECT_THAT(message_of<Error>([&] { read_tiktoken("Q? 0\n", kimi, "t"); }), HasSubstr("line 1"));
}

// As BpeTrainer learns them of the same text.
TEST(BpeTrainer, LearnsTheSameMerges) {
  const Json expected = read_json(kFixtures / "trained.json");
  const std::string text = expected["text"];
  const TokenizerJson trained = train_bpe({{"text", text}}, 800);
  ASSERT_EQ(trained.merges.size(), expected["merges"].size());
  for (size_t i = 0; i < trained.merges.size(); ++i) {
    EXPECT_EQ(trained.merges[i].first, expected["merges"][i][0]) << i;
    EXPECT_EQ(trained.merges[i].second, expected["merges"][i][1]) << i;
  }
  for (const auto& [token, id] : trained.vocabulary) EXPECT_EQ(expected["vocab"][token], id);
}

TEST(BpeTrainer, NamesTheLimitOfTheVocabulary) {
  const std::string text = "to be or not to be";
  EXPECT_THAT(message_of<Error>([&] {
                train_bpe({{"text", text}}, 400);
              }),
              HasSubstr("gives at most 266 tokens"));
  EXPECT_EQ(train_bpe({{"text", text}}, 266).vocabulary.size(), 266U);
  EXPECT_THAT(message_of<Error>([&] {
                train_bpe({{"b.txt", "ab\xff", 10}}, 300);
              }),
              AllOf(HasSubstr("b.txt"), HasSubstr("byte 12")));
  EXPECT_THAT(message_of<Error>([&] { train_bpe({}, 300); }), HasSubstr("no text"));
}

}  // namespace
}  // namespace attnres::hugging_face_test
