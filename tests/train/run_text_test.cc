#include "attnres/train/text/run_text.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attnres/data/tokenize_files.h"
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

std::vector<int32_t> train_tokens(const RunText& text) {
  const TrainingTokens& tokens = text.train.at(0).tokens;
  return tokens.read(0, tokens.size(), text.tokenizer->vocab_size());
}

// The number of byte tokens, without the ends of documents.
int64_t bytes_of(const std::vector<int32_t>& tokens) {
  return std::ssize(tokens) - std::count(tokens.begin(), tokens.end(), 0);
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
    // Tokens are given theirs.
    std::unique_ptr<Tokenizer> given;
    if (are_tokens(paths.data)) given = std::make_unique<ByteTokenizer>();
    RunText text = read_run_text(paths, recipe, recorded, std::move(given), messages);
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
  EXPECT_EQ(bytes_of(text.validation.ids), std::llround(0.05 * static_cast<double>(bytes)));
  EXPECT_EQ(bytes_of(train_tokens(text)) + bytes_of(text.validation.ids), bytes);
  EXPECT_THAT(shown_, HasSubstr("data: 3 files, 12.4 KiB (1 duplicate skipped); 12.1K tokens"));
  EXPECT_EQ(text.record["split"], "by_size");

  const RunText more = read({{data_}, {}}, recipe({"data.validation_fraction=0.2"}));
  EXPECT_EQ(bytes_of(more.validation.ids), std::llround(0.2 * static_cast<double>(bytes)));
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
    EXPECT_GE(read({{data_}, {}}, long_context).validation.ids.size(), 700U) << tokenizer;
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
  EXPECT_EQ(bytes_of(text.validation.ids), std::ssize(squares("b", 60)));
  EXPECT_EQ(bytes_of(train_tokens(text)), std::ssize(squares("a", 400) + squares("c", 120)));
  EXPECT_THAT(shown_, HasSubstr("(2 files of the validation text skipped); validation: 1 file, "));
  EXPECT_EQ(text.record["split"], "given");
  EXPECT_EQ(text.record["validation_paths"], Json({(base_ / "own").string()}));
  // Other text to validate on makes another run, though it trains on the same.
  write_text(base_ / "other", squares("f", 60));
  const RunText other = read({{data_ / "a", data_ / "c"}, {base_ / "other"}});
  EXPECT_EQ(train_tokens(other), train_tokens(text));
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

// The rows of packed documents need not be full: neither part has to fill a context.
TEST_F(TextOfARun, MayBeShortWhereDocumentsArePacked) {
  const std::string all = squares("a", 20);  // 380 bytes
  write_text(base_ / "short", all);
  tokenize_files({.files = find_document_files({base_ / "short"}), .out = base_ / "tokens"},
                 ByteTokenizer());
  const std::vector<std::string> long_context = {"train.context=500"};
  const Recipe packed = recipe({"train.context=500", "data.packing=documents"});
  for (const char* name : {"short", "tokens"}) {
    const TextPaths paths = {{base_ / name}, {}};
    EXPECT_THAT(message_of<Error>([&] { read(paths, recipe(long_context)); }),
                AllOf(HasSubstr("are too few"), HasSubstr("500")));
    const RunText text = read(paths, packed);
    EXPECT_NEAR(bytes_of(text.validation.ids), std::ssize(all) / 2, 1);
    EXPECT_EQ(bytes_of(text.validation.ids) + bytes_of(train_tokens(text)), std::ssize(all));
    const Vocabulary vocabulary = vocabulary_of(ByteTokenizer());
    EXPECT_EQ(batches_of(text.train, packed, vocabulary).batch(1, 0, 1).tokens(),
              text.train[0].tokens.size() - 1);
    const RunPaths run = record(text, packed);
    EXPECT_EQ(read(paths, packed, read_run_json(run)).record, text.record);
    EXPECT_EQ(read_held_out(run, ByteTokenizer()).ids, text.validation.ids);
  }
  // A tokenizer whose tokens have many bytes fills less.
  const Recipe words = recipe({"train.context=180", "data.packing=documents", "tokenizer.kind=bpe",
                               "tokenizer.vocab_size=264"});
  EXPECT_EQ(read({{base_ / "short"}, {}}, words).record["least_validation_bytes"],
            std::ssize(all) / 2);
  write_text(base_ / "own", "own text");
  EXPECT_EQ(read({{base_ / "short"}, {base_ / "own"}}, packed).validation.ids.size(), 9U);
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
    EXPECT_EQ(read_held_out(record(text), bytes).ids, text.validation.ids);
  }
  const RunPaths run = record(read({{data_}, {}}));
  write_text(data_ / "e", squares("c", 120));  // a duplicate changes nothing
  EXPECT_NO_THROW(read_held_out(run, bytes));
  write_text(data_ / "e", squares("e", 1));
  EXPECT_THAT(message_of<Error>([&] { read_held_out(run, bytes); }),
              AllOf(HasSubstr("has changed"), HasSubstr(data_.string()), HasSubstr("4 files")));
}

TEST_F(TextOfARun, ThatIsGoneCanBeNamedElsewhere) {
  write_text(base_ / "own", squares("e", 60));
  const TextPaths paths = {{data_}, {base_ / "own"}};
  const RunPaths run = record(read(paths));
  fs::remove(base_ / "own");
  const std::string gone = (base_ / "own").string() + ": the text of this run is no longer there; ";
  EXPECT_THAT(message_of<Error>([&] { read(paths, recipe(), read_run_json(run)); }),
              AllOf(HasSubstr(gone), HasSubstr("name where it lies now with --validation")));
  EXPECT_THAT(message_of<Error>([&] { read_held_out(run, ByteTokenizer()); }),
              AllOf(HasSubstr(gone), HasSubstr("train --resume"), HasSubstr("--validation PATH")));
  fs::remove_all(data_);
  EXPECT_THAT(message_of<Error>([&] { read(paths, recipe(), read_run_json(run)); }),
              HasSubstr("no longer there; put it back, or name where it lies now with --data"));
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
  EXPECT_EQ(read_held_out(run, ByteTokenizer()).ids, text.validation.ids);
}

// Another run beside it trains no tokenizer, and tokenizes nothing again.
TEST_F(TextOfARun, IsTokenizedOnceForTheRunsOfAFolder) {
  const Recipe words = recipe({"tokenizer.kind=bpe", "tokenizer.vocab_size=300"});
  const fs::path runs = base_ / "runs";
  const TextPaths paths = {{data_}, {}, runs};
  const RunText first = read(paths, words);
  const auto kept = [&] {
    std::vector<fs::path> folders;
    for (const auto& entry : fs::directory_iterator(runs / ".tokens")) {
      folders.push_back(entry.path());
    }
    return folders;
  };
  ASSERT_EQ(kept().size(), 1U);
  const RunText again = read(paths, words);
  EXPECT_EQ(again.record, first.record);
  EXPECT_EQ(train_tokens(again), train_tokens(first));
  EXPECT_EQ(again.validation.ids, first.validation.ids);
  EXPECT_EQ(again.tokenizer->hash(), first.tokenizer->hash());
  // These are what it reads.
  const fs::path tokens = kept()[0] / "tokens-00000.bin";
  const std::string bytes = read_file(tokens);
  write_text(tokens, std::string(bytes.size(), '\x1'));
  EXPECT_EQ(train_tokens(read(paths, words)),
            std::vector<int32_t>(train_tokens(first).size(), 257));
  // Damaged, they are made again.
  write_text(tokens, bytes.substr(1));
  EXPECT_EQ(train_tokens(read(paths, words)), train_tokens(first));
  EXPECT_EQ(read_file(tokens), bytes);
  // Another text, tokenizer or split has its own.
  EXPECT_NE(read({{data_ / "a"}, {}, runs}, words).tokenizer->hash(), first.tokenizer->hash());
  read(paths, recipe({"tokenizer.kind=bpe", "tokenizer.vocab_size=310"}));
  read(paths,
       recipe({"tokenizer.kind=bpe", "tokenizer.vocab_size=300", "data.validation_fraction=0.2"}));
  EXPECT_EQ(kept().size(), 4U);
  read(paths);  // bytes
  EXPECT_EQ(kept().size(), 4U);
}

// Tokenized text gives the rows that the text itself gives, where both hold out the same.
TEST_F(TextOfARun, IsTheSameTokenizedBefore) {
  write_text(base_ / "own", squares("e", 60));
  const RunText plain = read({{data_ / "a", data_ / "b"}, {base_ / "own"}});
  tokenize_files(
      {.files = find_document_files({data_ / "a", data_ / "b"}), .out = base_ / "tokens"},
      ByteTokenizer());
  tokenize_files({.files = find_document_files({base_ / "own"}), .out = base_ / "own tokens"},
                 ByteTokenizer());
  for (const char* own : {"own", "own tokens"}) {
    const RunText mapped = read({{base_ / "tokens"}, {base_ / own}});
    EXPECT_EQ(train_tokens(mapped), train_tokens(plain));
    EXPECT_EQ(mapped.validation.ids, plain.validation.ids);
    EXPECT_EQ(mapped.record["train_tokens"], plain.record["train_tokens"]);
    EXPECT_EQ(read_held_out(record(mapped), ByteTokenizer()).ids, plain.validation.ids);
    const Recipe wide = recipe({"train.batch_size=4"});
    const Vocabulary vocabulary = vocabulary_of(ByteTokenizer());
    const Batch batch = batches_of(mapped.train, wide, vocabulary).batch(7, 0, 4);
    EXPECT_TRUE(
        batch.inputs_BT.equal(batches_of(plain.train, wide, vocabulary).batch(7, 0, 4).inputs_BT));
  }
}

// Tokens cannot be left out of what is trained on: of what is validated on they are.
TEST_F(TextOfARun, IsNotValidatedOnTokensThatItTrainsOn) {
  const auto tokenized = [&](const std::string& name, const std::vector<fs::path>& texts) {
    tokenize_files({.files = find_document_files(texts), .out = base_ / name}, ByteTokenizer());
    return base_ / name;
  };
  const fs::path tokens = tokenized("tokens", {data_ / "a", data_ / "b", data_ / "c"});
  write_text(base_ / "new", squares("new", 60));
  write_text(base_ / "newer", squares("newer", 60));
  const std::vector<fs::path> some = {base_ / "new", data_ / "b", base_ / "newer"};
  const std::string expected = squares("new", 60) + '\0' + squares("newer", 60) + '\0';
  const std::vector<int32_t> kept(expected.begin(), expected.end());
  // As text, as tokens, and as tokens of which nothing says where documents end.
  const fs::path own = tokenized("own", some), bin = base_ / "own.bin";
  fs::copy_file(own / "tokens-00000.bin", bin);
  for (const std::vector<fs::path>& validation : {some, {own}, {bin}}) {
    const RunText text = read({{tokens}, validation});
    EXPECT_EQ(text.validation.ids, kept);
    EXPECT_EQ(text.record["validation_left_out"], Json({1}));
    EXPECT_THAT(shown_, HasSubstr("(1 document of the text to train on skipped)"));
    EXPECT_EQ(text.train[0].tokens.size(),
              std::ssize(squares("a", 400) + squares("b", 60) + squares("c", 120)) + 3);
    // As it is later: by a run that goes on, and by who scores it.
    const RunPaths run = record(text);
    EXPECT_EQ(read({{tokens}, validation}, recipe(), read_run_json(run)).record, text.record);
    EXPECT_EQ(read_held_out(run, ByteTokenizer()).ids, kept);
  }
  const auto refused = [&](const TextPaths& paths) {
    return message_of<Error>([&] { read(paths); });
  };
  const fs::path again = tokenized("again", {data_ / "c", data_ / "a"});
  for (const TextPaths& paths :
       {TextPaths{{tokens}, {tokens}}, TextPaths{{tokens}, {again}}, TextPaths{{tokens}, {data_}},
        TextPaths{{again, tokens}, {data_ / "b"}}}) {
    EXPECT_THAT(refused(paths),
                AllOf(HasSubstr("validation text: "),
                      HasSubstr("are in the text to train on as well"), HasSubstr("--data")));
  }
  EXPECT_THAT(refused({{tokens}, {tokens}}), HasSubstr("3 of its 3 documents"));
  // Negative control: all is kept of text that is another's.
  EXPECT_FALSE(read({{tokens}, {base_ / "new"}}).record.contains("validation_left_out"));
}

// Held out of one source, and trained on in another.
TEST_F(TextOfARun, HoldsOutOfASourceWhatNoOtherHas) {
  const auto tokenized = [&](const std::string& name, const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      write_text(base_ / ("of " + name) / text.substr(0, 2), text);
    }
    tokenize_files({.files = find_document_files({base_ / ("of " + name)}), .out = base_ / name},
                   ByteTokenizer());
    return base_ / name;
  };
  const std::string shared = squares("8", 5), last = squares("9", 5);
  const fs::path one = tokenized("one", {squares("1", 300), shared, last}),
                 two = tokenized("two", {squares("0", 5) + shared, shared, squares("95", 300)});
  const Recipe small = recipe({"data.validation_fraction=0.05"});
  const RunText alone = read({{one}, {}}, small), both = read({{one, two}, {}}, small);
  const auto has = [](const RunText& text, const std::string& document) {
    const std::string held(text.validation.ids.begin(), text.validation.ids.end());
    return held.find(document) != std::string::npos;
  };
  ASSERT_TRUE(has(alone, last));
  ASSERT_TRUE(has(alone, shared));
  EXPECT_TRUE(has(both, last));
  EXPECT_FALSE(has(both, shared));
  EXPECT_EQ(read_held_out(record(both, small), ByteTokenizer()).ids, both.validation.ids);
}

TEST_F(TextOfARun, HoldsOutTheEndOfEachTokenizedSource) {
  for (const char* name : {"a", "c"}) {
    tokenize_files(
        {.files = find_document_files({data_ / name}), .out = base_ / (std::string(name) + "s")},
        ByteTokenizer());
  }
  const TextPaths paths = {{base_ / "as", base_ / "cs"}, {}};
  const RunText text = read(paths, recipe({"data.validation_fraction=0.1"}));
  const std::string a = squares("a", 400) + '\0', c = squares("c", 120) + '\0';
  const size_t held_a = std::llround(0.1 * a.size()), held_c = std::llround(0.1 * c.size());
  const std::string expected = a.substr(a.size() - held_a) + c.substr(c.size() - held_c);
  EXPECT_EQ(text.validation.ids, std::vector<int32_t>(expected.begin(), expected.end()));
  EXPECT_EQ(text.train[0].tokens.size(), std::ssize(a) - held_a);
  EXPECT_EQ(text.train[0].weight, static_cast<double>(a.size()));
  EXPECT_EQ(text.record["split"], "end");
  const RunPaths run = record(text, recipe({"data.validation_fraction=0.1"}));
  EXPECT_EQ(read_held_out(run, ByteTokenizer()).ids, text.validation.ids);
  EXPECT_THAT(shown_, HasSubstr("data: 2 tokenized sources, "));

  const RunText weighted = read(paths, recipe({"data.weights.as=3", "data.weights.cs=1"}));
  EXPECT_EQ(weighted.train[0].weight, 3);
  const auto refused = [&](const TextPaths& paths, const std::vector<std::string>& overrides) {
    return message_of<Error>([&] { read(paths, recipe(overrides)); });
  };
  EXPECT_THAT(refused(paths, {"data.weights.as=3"}), HasSubstr("no weight for cs"));
  EXPECT_THAT(refused(paths, {"data.weights.bs=3"}), HasSubstr("no --data has this name"));
  EXPECT_THAT(refused({{data_}, {}}, {"data.weights.as=3"}), HasSubstr("tokenize each of them"));
  EXPECT_THAT(refused({{base_ / "as", data_}, {}}, {}), HasSubstr("some is text"));
  EXPECT_THAT(refused({{data_}, {base_ / "as"}}, {}), HasSubstr("give both alike"));
  EXPECT_THAT(refused(paths, {"train.context=2000"}), HasSubstr("too few to hold some out"));

  // Other tokens there than the run had.
  fs::remove_all(base_ / "cs");
  tokenize_files({.files = find_document_files({data_ / "b"}), .out = base_ / "cs"},
                 ByteTokenizer());
  EXPECT_THAT(message_of<Error>([&] { read_held_out(run, ByteTokenizer()); }),
              HasSubstr("has changed"));
}

}  // namespace
}  // namespace attnres::run_text_test
