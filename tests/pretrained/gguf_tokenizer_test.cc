#include "attnres/pretrained/gguf_tokenizer.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "attnres/text/sentencepiece.h"
#include "tests/text/test_files.h"

namespace attnres::testing::gguf_tokenizer_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::string> kTexts = {
    "the cat sat", " two  spaces\n\n\tand\r\n", "na\u00efve \u2014 \u65e5\u672c\u8a9e",
    "</s> <0x41>", "[UNUSED290] \u2581 mat",    ""};

SentencePieceTokenizer sentencepiece() {
  const std::string text = "the cat and the hat and the bat sat on the mat";
  return {train_sentencepiece({{"words.txt", text}}, 285), "words"};
}

std::unique_ptr<Tokenizer> byte_pairs() {
  const std::string text = "the cat and the hat and the bat sat on the mat";
  return make_tokenizer({"bpe", 275}, {{"words.txt", text}});
}

std::unique_ptr<Tokenizer> reread(const GgufMetadata& metadata) {
  const fs::path path = fresh_folder("gguf") / "file.gguf";
  write_gguf(path, metadata, {});
  return read_gguf_tokenizer(GgufFile(path));
}

GgufValue& value_of(GgufMetadata& metadata, const std::string& key) {
  for (auto& [name, value] : metadata) {
    if (name == key) return value;
  }
  return metadata.emplace_back(key, GgufValue()).second;
}

void expect_alike(const Tokenizer& expected, const Tokenizer& found) {
  EXPECT_EQ(found.kind(), expected.kind());
  EXPECT_EQ(found.vocab_size(), expected.vocab_size());
  EXPECT_EQ(found.end_of_document(), expected.end_of_document());
  for (const std::string& text : kTexts) {
    EXPECT_EQ(found.encode(text), expected.encode(text)) << text;
    EXPECT_EQ(found.decode(found.encode(text)), text);
  }
  for (int32_t id = 0; id < expected.vocab_size(); ++id) {
    EXPECT_EQ(found.token_text(id), expected.token_text(id)) << id;
  }
}

TEST(GgufTokenizer, GivesBytesBack) {
  const ByteTokenizer tokenizer;
  expect_alike(tokenizer, *reread(gguf_tokenizer(tokenizer, 256)));
  expect_alike(tokenizer, *reread(gguf_tokenizer(tokenizer, 300)));
}

TEST(GgufTokenizer, GivesSentencePieceBack) {
  const SentencePieceTokenizer tokenizer = sentencepiece();
  expect_alike(tokenizer, *reread(gguf_tokenizer(tokenizer, 285)));
  expect_alike(tokenizer, *reread(gguf_tokenizer(tokenizer, 300)));
}

TEST(GgufTokenizer, GivesBytePairsBack) {
  const auto tokenizer = byte_pairs();
  expect_alike(*tokenizer, *reread(gguf_tokenizer(*tokenizer, 275)));
  expect_alike(*tokenizer, *reread(gguf_tokenizer(*tokenizer, 300)));
}

// What published tokenizers have in common with the small ones of the fixtures is how they split
// text, and its name.
TEST(GgufTokenizer, NamesHowPublishedTokenizersSplitText) {
  const fs::path fixtures = fs::path(ATTNRES_SOURCE_DIR) / "tests/fixtures/tokenizers";
  const std::vector<std::pair<std::string, std::string>> names = {{"gpt2", "gpt-2"},
                                                                  {"llama3", "llama-bpe"},
                                                                  {"qwen2", "qwen2"},
                                                                  {"smollm", "smollm"},
                                                                  {"deepseek3", "deepseek-v3"}};
  for (const auto& [folder, name] : names) {
    const auto tokenizer = load_tokenizer(fixtures / folder);
    GgufMetadata metadata = gguf_tokenizer(*tokenizer, tokenizer->vocab_size());
    EXPECT_EQ(std::get<std::string>(value_of(metadata, "tokenizer.ggml.pre")), name);
    expect_alike(*tokenizer, *reread(metadata));
  }
  for (const char* folder : {"llama2", "prefix", "accents"}) {
    const auto tokenizer = load_tokenizer(fixtures / folder);
    EXPECT_THAT(message_of<Error>([&] { gguf_tokenizer(*tokenizer, tokenizer->vocab_size()); }),
                HasSubstr("llama.cpp knows no tokenizer"));
  }
}

// Which piece is merged first is the scores' to say.
TEST(GgufTokenizer, GoesByScores) {
  const auto encoded = [](float of_ab, float of_bc) {
    return reread({{"tokenizer.ggml.model", "llama"},
                   {"tokenizer.ggml.tokens",
                    std::vector<std::string>{"<unk>", "<s>", "</s>", "a", "b", "c", "ab", "bc"}},
                   {"tokenizer.ggml.scores", std::vector<float>{0, 0, 0, -9, -9, -9, of_ab, of_bc}},
                   {"tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 3, 1, 1, 1, 1, 1}},
                   {"tokenizer.ggml.add_space_prefix", false}})
        ->encode("abc");
  };
  EXPECT_THAT(encoded(-1, -2), ElementsAre(6, 5));
  EXPECT_THAT(encoded(-2, -1), ElementsAre(3, 7));
}

// As files of Phi 3 have it.
TEST(GgufTokenizer, TakesWhatAFileIsFilledUpWithForUnused) {
  GgufMetadata metadata = gguf_tokenizer(sentencepiece(), 287);
  auto& types = std::get<std::vector<int32_t>>(value_of(metadata, "tokenizer.ggml.token_type"));
  const auto unknown = std::find(types.begin(), types.end(), 2);
  *unknown = 3;
  types[285] = types[286] = 2;
  expect_alike(sentencepiece(), *reread(metadata));
}

TEST(GgufTokenizer, KnowsSeveralNamesForOneWayToSplitText) {
  const fs::path fixtures = fs::path(ATTNRES_SOURCE_DIR) / "tests/fixtures/tokenizers";
  for (const auto& [folder, name] : {std::pair("gpt2", "mpt"),
                                     {"smollm", "starcoder"},
                                     {"smollm", "command-r"},
                                     {"llama3", "llama3"},
                                     {"llama3", "llama-v3"},
                                     {"llama3", "falcon3"},
                                     {"llama3", "pixtral"},
                                     {"llama3", "lfm2"},
                                     {"qwen2", "deepseek-r1-qwen"}}) {
    const auto tokenizer = load_tokenizer(fixtures / folder);
    GgufMetadata metadata = gguf_tokenizer(*tokenizer, tokenizer->vocab_size());
    value_of(metadata, "tokenizer.ggml.pre") = std::string(name);
    expect_alike(*tokenizer, *reread(metadata));
  }
}

TEST(GgufTokenizer, PutsASpaceBeforeWhereTheFileSaysSo) {
  GgufMetadata metadata = gguf_tokenizer(sentencepiece(), 285);
  EXPECT_EQ(reread(metadata)->encode("the"), sentencepiece().encode("the"));
  value_of(metadata, "tokenizer.ggml.add_space_prefix") = true;
  EXPECT_EQ(reread(metadata)->encode("the"), sentencepiece().encode(" the"));
  std::erase_if(metadata,
                [](const auto& key) { return key.first == "tokenizer.ggml.add_space_prefix"; });
  EXPECT_EQ(reread(metadata)->encode("the"), sentencepiece().encode(" the"))
      << "as llama.cpp has it without the key";
}

TEST(GgufTokenizer, RefusesOthersByName) {
  const auto refusal = [](const GgufMetadata& metadata) {
    return message_of<UnreadTokenizer>([&] { reread(metadata); });
  };
  EXPECT_THAT(refusal({{"tokenizer.ggml.model", "t5"}}),
              AllOf(HasSubstr("'t5'"), HasSubstr("--ids")));
  EXPECT_THAT(refusal({}), HasSubstr("there is no tokenizer in it"));
  EXPECT_THAT(refusal(gguf_without_tokenizer()), HasSubstr("there is no tokenizer in it"));
  GgufMetadata pairs = gguf_tokenizer(*byte_pairs(), 300);
  value_of(pairs, "tokenizer.ggml.pre") = std::string("odd");
  EXPECT_THAT(refusal(pairs), AllOf(HasSubstr("'odd'"), HasSubstr("llama-bpe, llama3")));
  GgufMetadata pieces = gguf_tokenizer(sentencepiece(), 285);
  value_of(pieces, "tokenizer.ggml.precompiled_charsmap") = std::vector<uint8_t>{1};
  EXPECT_THAT(refusal(pieces), HasSubstr("replaces characters"));
}

TEST(GgufTokenizer, RefusesWhatDoesNotFitTogether) {
  const auto refusal = [](const std::string& key, const GgufValue& value) {
    GgufMetadata metadata = gguf_tokenizer(sentencepiece(), 285);
    value_of(metadata, key) = value;
    return message_of<Error>([&] { reread(metadata); });
  };
  EXPECT_THAT(refusal("tokenizer.ggml.tokens", uint32_t{3}), HasSubstr("tokens is missing"));
  EXPECT_THAT(refusal("tokenizer.ggml.scores", std::vector<float>{1}), HasSubstr("expected 285"));
  EXPECT_THAT(refusal("tokenizer.ggml.token_type", std::vector<int32_t>(285, 9)),
              HasSubstr("unknown type 9"));
  EXPECT_THAT(refusal("tokenizer.ggml.token_type", std::vector<int32_t>(285, 1)),
              HasSubstr("no end-of-sentence token"));
  EXPECT_THAT(refusal("tokenizer.ggml.eos_token_id", uint32_t{285}),
              HasSubstr("eos_token_id: is not the number of a token"));
}

TEST(GgufTokenizer, RefusesBytePairsThatAreNoText) {
  const auto refusal = [](const std::string& key) {
    GgufMetadata metadata = gguf_tokenizer(*byte_pairs(), 275);
    std::get<std::vector<std::string>>(value_of(metadata, key)).back() = "a \xc3";
    return message_of<Error>([&] { reread(metadata); });
  };
  for (const std::string key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
    EXPECT_THAT(refusal(key), AllOf(HasSubstr(key), HasSubstr("byte 2"))) << key;
  }
}

}  // namespace
}  // namespace attnres::testing::gguf_tokenizer_test
