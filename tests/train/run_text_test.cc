#include "attnres/train/run_text.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "tests/text/test_files.h"

namespace attnres::run_text_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// `count` lines that begin with `name`.
std::string squares(const std::string& name, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("{} {} squared is {}\n", name, i, i * i);
  return text;
}

struct Messages : TrainObserver {
  void on_message(std::string_view line) override { lines += fmt::format("{}\n", line); }
  std::string lines;
};

class TextOfARun : public ::testing::Test {
 protected:
  TextOfARun() {
    write_text(data_ / "a", squares("a", 400));
    write_text(data_ / "b", squares("b", 60));
    write_text(data_ / "c", squares("c", 120));
    write_text(data_ / "d", squares("b", 60));  // as b
  }

  static Recipe recipe(const std::vector<std::string>& overrides = {}) {
    Json json = {{"train", {{"context", 64}}}};
    for (const std::string& assignment : overrides) apply_override(json, assignment);
    return parse_recipe(json);
  }
  RunText read(const TextPaths& paths, const Recipe& recipe = TextOfARun::recipe(),
               const Json& recorded = Json()) {
    Messages messages;
    const auto tokenizer_for = [&](const std::vector<Passage>& training_text) {
      return make_tokenizer(recipe.tokenizer, training_text);
    };
    RunText text = read_run_text(paths, recipe, recorded, tokenizer_for, messages);
    shown_ = messages.lines;
    return text;
  }
  // A run's folder as far as its text is concerned.
  RunPaths record(const RunText& text, const Recipe& recipe = TextOfARun::recipe()) const {
    const RunPaths run{base_ / "run"};
    write_text(run.run_json(),
               Json{{"recipe", recipe_to_json(recipe)}, {"data", text.record}}.dump());
    return run;
  }

  const fs::path base_ = fresh_folder("text"), data_ = base_ / "data";
  std::string shown_;
};

TEST_F(TextOfARun, IsSplitBySizeWithoutDuplicates) {
  const RunText text = read({{data_}, {}});
  const int64_t bytes = std::ssize(squares("a", 400) + squares("b", 60) + squares("c", 120));
  EXPECT_EQ(text.split.validation.bytes, std::llround(0.05 * static_cast<double>(bytes)));
  EXPECT_EQ(text.split.train.bytes + text.split.validation.bytes, bytes);
  EXPECT_THAT(shown_, HasSubstr("data: 3 files, 12.4 KiB (1 duplicate skipped); 12.1K tokens"));
  EXPECT_EQ(text.record["split"], "by_size");

  const RunText more = read({{data_}, {}}, recipe({"data.validation_fraction=0.2"}));
  EXPECT_EQ(more.split.validation.bytes, std::llround(0.2 * static_cast<double>(bytes)));
}

TEST_F(TextOfARun, GivenTwiceIsTheSame) {
  const RunText once = read({{data_ / "a"}, {}}), twice = read({{data_ / "a", data_ / "a"}, {}});
  EXPECT_EQ(twice.record["tokens_hash"], once.record["tokens_hash"]);
  EXPECT_EQ(twice.record["hash"], once.record["hash"]);
  EXPECT_NE(read({{data_ / "a", data_ / "b"}, {}}).record["hash"], once.record["hash"]);
}

TEST_F(TextOfARun, WarnsOfFewTokensToValidateOn) {
  read({{data_}, {}});
  EXPECT_THAT(shown_, AllOf(HasSubstr("warning: only "), HasSubstr("--validation")));
  write_text(base_ / "long", squares("e", 5000));
  read({{base_ / "long"}, {}});
  EXPECT_THAT(shown_, Not(HasSubstr("warning")));
}

TEST_F(TextOfARun, FillsAContextWhateverTheTokens) {
  for (const char* tokenizer : {"tokenizer.kind=bytes", "tokenizer.kind=sentencepiece"}) {
    const Recipe long_context =
        recipe({tokenizer, "train.context=700",
                fmt::format("tokenizer.vocab_size={}",
                            std::string(tokenizer).ends_with("bytes") ? 256 : 300)});
    EXPECT_GE(read({{data_}, {}}, long_context).split.validation.tokens.size(), 700U) << tokenizer;
  }
  EXPECT_THAT(
      message_of<Error>([&] {
        read({{data_}, {}}, recipe({"train.context=7000"}));
      }),
      AllOf(HasSubstr("12735 bytes are too few"), HasSubstr("7000"), HasSubstr("--validation")));
}

TEST_F(TextOfARun, IsValidatedOnTextOfItsOwnThatItDoesNotTrainOn) {
  write_text(base_ / "own", squares("b", 60));  // as b and d of the data
  const RunText text = read({{data_}, {base_ / "own"}});
  EXPECT_EQ(text.split.validation.bytes, std::ssize(squares("b", 60)));
  EXPECT_EQ(text.split.train.bytes, std::ssize(squares("a", 400) + squares("c", 120)));
  EXPECT_THAT(shown_, HasSubstr("(2 files of the validation text skipped); validation: 1 file, "));
  EXPECT_EQ(text.record["split"], "given");
  EXPECT_EQ(text.record["validation_paths"], Json({(base_ / "own").string()}));
  // Other text to validate on makes another run, though it trains on the same.
  write_text(base_ / "other", squares("f", 60));
  const RunText other = read({{data_ / "a", data_ / "c"}, {base_ / "other"}});
  EXPECT_EQ(other.split.train.tokens, text.split.train.tokens);
  EXPECT_NE(other.record["hash"], text.record["hash"]);

  write_text(base_ / "short", "short");
  EXPECT_THAT(message_of<Error>([&] {
                read({{data_}, {base_ / "short"}});
              }),
              HasSubstr("validation text: 6 tokens, but a context has 64"));
  EXPECT_THAT(message_of<Error>([&] {
                read({{data_}, {data_}});
              }),
              HasSubstr("is validation text as well"));
}

TEST_F(TextOfARun, GoesOnAsItBegan) {
  const Recipe long_context =
      recipe({"train.context=700", "tokenizer.kind=sentencepiece", "tokenizer.vocab_size=300"});
  const RunText begun = read({{data_}, {}}, long_context);
  EXPECT_GT(begun.record["least_validation_bytes"], 700);
  const Json run = read_run_json(record(begun, long_context));
  EXPECT_EQ(read({{data_}, {}}, long_context, run).record, begun.record);
}

TEST_F(TextOfARun, HeldOutIsReadAgain) {
  const ByteTokenizer bytes;
  write_text(base_ / "own", squares("e", 60));
  for (const TextPaths& paths : {TextPaths{{data_}, {}}, TextPaths{{data_}, {base_ / "own"}}}) {
    const RunText text = read(paths);
    EXPECT_EQ(read_held_out(record(text), bytes).tokens, text.split.validation.tokens);
  }
  const RunPaths run = record(read({{data_}, {}}));
  write_text(data_ / "e", squares("c", 120));  // a duplicate changes nothing
  EXPECT_NO_THROW(read_held_out(run, bytes));
  write_text(data_ / "e", squares("e", 1));
  EXPECT_THAT(message_of<Error>([&] { read_held_out(run, bytes); }),
              AllOf(HasSubstr("has changed"), HasSubstr(data_.string()), HasSubstr("4 files")));
}

// run.json as it was written before it recorded a split, for the texts above. The hashes are those
// of another program (FNV-1a and SplitMix64 in Python), whose rule held out the first file.
Json old_record(const fs::path& data) {
  Json recipe = recipe_to_json(parse_recipe({{"train", {{"context", 64}}}}));
  recipe.erase("data");
  return {{"recipe", recipe},
          {"data",
           {{"paths", {data.string()}},
            {"description", "4 files, 13.6 KiB"},
            {"hash", "187a163ab37d12cc"},
            {"tokens_hash", "25d77452ece113bf"},
            {"bytes", 13939},
            {"train_tokens", 4915},
            {"validation_tokens", 9028}}}};
}

TEST_F(TextOfARun, ThatBeganBeforeSplitsWereRecordedGoesOnWithItsOwn) {
  const Json old = old_record(data_);
  const RunText text = read({{data_}, {}}, recipe(), old);
  for (const char* key : {"hash", "tokens_hash", "bytes", "train_tokens", "validation_tokens"}) {
    EXPECT_EQ(text.record[key], old["data"][key]) << key;
  }
  EXPECT_FALSE(text.record.contains("split"));
  EXPECT_NE(read({{data_}, {}}).record["tokens_hash"], old["data"]["tokens_hash"]);

  const RunPaths run{base_ / "run"};
  write_text(run.run_json(), old.dump());
  EXPECT_EQ(read_held_out(run, ByteTokenizer()).tokens, text.split.validation.tokens);
}

}  // namespace
}  // namespace attnres::run_text_test
