#include "attnres/pretrained/gguf_tokenizer.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "attnres/text/hugging_face/bpe_tokenizer.h"
#include "attnres/text/hugging_face/post_processor.h"
#include "attnres/text/sentencepiece.h"
#include "tests/text/test_files.h"

namespace attnres::testing::gguf_tokenizer_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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

GgufMetadata without(GgufMetadata metadata, const std::string& name) {
  std::erase_if(metadata, [&](const auto& key) { return key.first == name; });
  return metadata;
}

TEST(GgufTokenizer, KeepsWhatStandsAroundATextAndBack) {
  const fs::path fixtures = fs::path(ATTNRES_SOURCE_DIR) / "tests/fixtures/tokenizers";
  const auto llama = load_tokenizer(fixtures / "llama3");
  GgufMetadata metadata = gguf_tokenizer(*llama, llama->vocab_size());
  EXPECT_EQ(std::get<uint32_t>(value_of(metadata, "tokenizer.ggml.bos_token_id")), 0U);
  EXPECT_EQ(std::get<uint32_t>(value_of(metadata, "tokenizer.ggml.eos_token_id")), 2U);
  EXPECT_TRUE(std::get<bool>(value_of(metadata, "tokenizer.ggml.add_bos_token")));
  EXPECT_FALSE(std::get<bool>(value_of(metadata, "tokenizer.ggml.add_eos_token")));
  value_of(metadata, "tokenizer.ggml.add_eos_token") = true;
  const auto read = reread(metadata);
  EXPECT_THAT(read->frame().before, ElementsAre(0));
  EXPECT_THAT(read->frame().after, ElementsAre(2));
  EXPECT_EQ(prompt_ids("<|begin_of_text|>word", *read), prompt_ids("word", *llama));
  const fs::path saved = fresh_folder("saved");
  read->save(saved);
  const auto back = load_tokenizer(saved);
  EXPECT_THAT(back->frame().before, ElementsAre(0));
  EXPECT_EQ(back->begin_of_text(), 0);
  GgufMetadata again = gguf_tokenizer(*back, back->vocab_size());
  for (const char* key : {"bos_token_id", "eos_token_id", "add_bos_token", "add_eos_token"}) {
    const std::string name = std::string("tokenizer.ggml.") + key;
    EXPECT_EQ(value_of(again, name), value_of(metadata, name)) << name;
  }
}

TEST(GgufTokenizer, KnowsATextsBeginOfSentencePiece) {
  const std::string model = SentencePieceTokenizer(sentencepiece()).model();
  const SentencePieceTokenizer begun(model, "model", {.begin = true});
  GgufMetadata metadata = gguf_tokenizer(begun, 285);
  EXPECT_EQ(std::get<uint32_t>(value_of(metadata, "tokenizer.ggml.bos_token_id")), 1U);
  EXPECT_THAT(reread(metadata)->frame().before, ElementsAre(1));
  // One that begins none still has a token for it.
  metadata = gguf_tokenizer(sentencepiece(), 285);
  EXPECT_EQ(std::get<uint32_t>(value_of(metadata, "tokenizer.ggml.bos_token_id")), 1U);
  EXPECT_TRUE(reread(metadata)->frame().empty());
}

// llama.cpp's src/llama-vocab.cpp: SentencePiece begins texts, and byte pairs split as Llama 3's
// do.
TEST(GgufTokenizer, GoesByLlamaCppWhereAFileDoesNotSay) {
  const std::string key = "tokenizer.ggml.add_bos_token";
  EXPECT_THAT(reread(without(gguf_tokenizer(sentencepiece(), 285), key))->frame().before,
              ElementsAre(1));
  const fs::path fixtures = fs::path(ATTNRES_SOURCE_DIR) / "tests/fixtures/tokenizers";
  for (const char* name : {"gpt2", "llama3", "qwen2", "smollm", "deepseek3"}) {
    const auto tokenizer = load_tokenizer(fixtures / name);
    const auto read = reread(without(gguf_tokenizer(*tokenizer, tokenizer->vocab_size()), key));
    EXPECT_EQ(read->frame().before.size(), name == std::string("llama3") ? 1U : 0U) << name;
  }
}

TEST(GgufTokenizer, RefusesWhatLlamaCppCannotPutAroundAText) {
  const auto llama =
      load_tokenizer(fs::path(ATTNRES_SOURCE_DIR) / "tests/fixtures/tokenizers/llama3");
  TokenizerJson parts = dynamic_cast<const BpeTokenizer&>(*llama).parts();
  parts.post_processor = write_post_processor({{"<|begin_of_text|>", 0}, {"<|eot_id|>", 1}}, {});
  const BpeTokenizer two(parts, {{"eos_token", "<|end_of_text|>"}}, "two");
  EXPECT_THAT(message_of<Error>([&] { gguf_tokenizer(two, two.vocab_size()); }),
              AllOf(HasSubstr("2 tokens before a text"), HasSubstr("safetensors")));
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

// Its own key, as nothing beside a GGUF file names tokens.
TEST(GgufTokenizer, SaysWhichKeyNamesTheEnd) {
  const auto refusal = [](GgufMetadata metadata) {
    std::erase_if(metadata, [](const auto& key) {
      return key.first == "tokenizer.ggml.eos_token_id" ||
             key.first == "tokenizer.ggml.bos_token_id";
    });
    for (std::string& token :
         std::get<std::vector<std::string>>(value_of(metadata, "tokenizer.ggml.tokens"))) {
      if (token == "</s>" || token == "<|endoftext|>" || token == "<|end_of_text|>") token += "_";
    }
    return message_of<UnreadTokenizer>([&] { reread(metadata); });
  };
  for (const GgufMetadata& metadata :
       {gguf_tokenizer(sentencepiece(), 285), gguf_tokenizer(*byte_pairs(), 275)}) {
    EXPECT_THAT(refusal(metadata),
                AllOf(HasSubstr("file.gguf: which token ends a document: none is named; name one "
                                "as tokenizer.ggml.eos_token_id"),
                      Not(HasSubstr("tokenizer_config"))));
  }
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
