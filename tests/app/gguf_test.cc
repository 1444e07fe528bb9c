// GGUF files in the place of model directories.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/formats/gguf_reader.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"
#include "attnres/text/bytes.h"
#include "tests/app/program.h"
#include "tests/formats/split_gguf.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"

namespace attnres::testing::app_gguf_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class GgufModel : public ::testing::Test {
 protected:
  void SetUp() override {
    const ModelConfig config = read_model_config({{"layers", 2},
                                                  {"width", 64},
                                                  {"heads", 4},
                                                  {"kv_heads", 2},
                                                  {"ffn_width", 96},
                                                  {"init_std", 0.2}});
    const Transformer model(config, 256, /*seed=*/1);
    save_model_folder(folder_, model, ByteTokenizer(), /*context=*/32);
    write_file(text_, "To be, or not to be, that is the question:\n");
  }

  fs::path exported(const std::string& type) const {
    fs::path file = folder_.parent_path() / (type + ".gguf");
    expect_runs(fmt::format("export --model {} --format gguf --type {} --out {}", folder_.string(),
                            type, file.string()));
    return file;
  }
  static std::string expect_runs(const std::string& arguments) {
    const Result result = run_program(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.err;
    return result.out;
  }
  // The score of each token of the text.
  std::vector<double> scores(const fs::path& model, const std::string& more = "") const {
    const std::string out = expect_runs(
        fmt::format("score --model {} --ids 84,111,32,98,101,44 --json {}", model.string(), more));
    return parse_json(out, "score").at("logprobs").get<std::vector<double>>();
  }
  double loss(const fs::path& model, const std::string& more = "") const {
    const std::string out = expect_runs(
        fmt::format("eval --model {} --data {} --json {}", model.string(), text_.string(), more));
    return parse_json(out, "eval").at("loss").get<double>();
  }

  const fs::path folder_ = fresh_folder("gguf") / "model";
  const fs::path text_ = folder_.parent_path() / "text.txt";
};

TEST_F(GgufModel, IsTakenWhereFoldersAre) {
  const fs::path file = exported("f32");
  EXPECT_NEAR(loss(file), loss(folder_), 1e-5);
  const auto continued = [&](const fs::path& model) {
    return expect_runs(fmt::format(
        "generate --prompt 'To be' --max-tokens 12 --temperature 0 --model {}", model.string()));
  };
  EXPECT_EQ(continued(file), continued(folder_));
  EXPECT_THAT(expect_runs("inspect --text 'To be' --model " + file.string()),
              HasSubstr(file.string()));
  const fs::path back = folder_.parent_path() / "back";
  expect_runs(fmt::format("export --model {} --out {}", file.string(), back.string()));
  EXPECT_NEAR(loss(back), loss(folder_), 1e-5) << "with the tokenizer beside it";
}

// Any of the parts, or their folder, for all of them.
TEST_F(GgufModel, MayBeInParts) {
  const fs::path file = exported("f32"), parts = fresh_folder("parts"), base = fresh_folder("made");
  const std::vector<fs::path> all = split_gguf(file, parts / "model", 7);
  ASSERT_GT(all.size(), 2U);
  const std::vector<double> expected = scores(file);
  for (const fs::path& given : {all[0], all[2], parts}) EXPECT_EQ(scores(given), expected);
  const auto same = [&](const std::string& arguments, const fs::path& given) {
    EXPECT_EQ(expect_runs(arguments + " --model " + given.string()),
              expect_runs(arguments + " --model " + file.string()));
  };
  same("generate --ids 84,111 --max-tokens 5 --temperature 0", all[1]);
  same("eval --json --data " + text_.string(), parts);
  same("inspect --json", all[1]);
  expect_runs(fmt::format("export --model {} --out {}", all[1].string(), (base / "a").string()));
  expect_runs(fmt::format("export --format gguf --model {} --out {}", parts.string(),
                          (base / "b.gguf").string()));
  expect_runs(fmt::format("import --from {} --out {}", all[1].string(), (base / "c").string()));
  expect_runs(fmt::format("retrofit --block-size 2 --model {} --out {}", parts.string(),
                          (base / "d").string()));
  for (const char* copy : {"a", "b.gguf", "c"}) EXPECT_EQ(scores(base / copy), expected) << copy;
  for (const char* command : {"tokenize", "generate --chat --max-tokens 2"}) {
    const Result result =
        run_shell(fmt::format("echo Hi | attnres {} --model {}", command, all[1].string()));
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  fs::remove(all[1]);
  for (const fs::path& given : {all[0], parts}) {
    const Result result = run_program("score --ids 1,2 --model " + given.string());
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr(all[1].filename().string()));
  }
}

TEST_F(GgufModel, KeepsItsWeightsAsItHasThem) {
  const fs::path file = exported("q8_0");
  EXPECT_EQ(scores(file), scores(file, "--weights q8_0"));
  EXPECT_EQ(scores(file), scores(folder_, "--weights q8_0"));
  EXPECT_NE(scores(file), scores(file, "--weights f32"));
  EXPECT_EQ(scores(folder_), scores(folder_, "--weights f32"));
}

// The same model, with a tokenizer of a kind that is not read.
void write_with_unread_tokenizer(const GgufFile& file, const fs::path& other) {
  GgufMetadata metadata = file.metadata();
  for (auto& [key, value] : metadata) {
    if (key == "tokenizer.ggml.model") value = std::string("bert");
  }
  std::vector<GgufTensor> tensors;
  for (const std::string& name : file.names()) {
    const at::Tensor numbers = file.numbers(name);
    tensors.push_back({name, file.info(name).shape, GgufType::f32, [numbers] { return numbers; }});
  }
  write_gguf(other, metadata, tensors);
}

TEST_F(GgufModel, NeedsATokenizerForTextOnly) {
  const GgufFile file(exported("f32"));
  const fs::path other = folder_.parent_path() / "other.gguf";
  write_with_unread_tokenizer(file, other);
  EXPECT_EQ(scores(other), scores(file.path()));
  expect_runs(fmt::format("generate --model {} --ids 5,17 --max-tokens 3", other.string()));
  const Result result = run_program(fmt::format("generate --model {} --prompt x", other.string()));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("other.gguf: its tokenizer is 'bert'"));
}

// What needs no text takes it all the same, and what copies it says what becomes of the tokenizer.
TEST_F(GgufModel, GoesWhereItsTokenizerIsNotRead) {
  const GgufFile file(exported("f32"));
  const fs::path other = folder_.parent_path() / "bert.gguf", base = folder_.parent_path();
  write_with_unread_tokenizer(file, other);
  const auto copied = [&](const std::string& arguments, const std::string& name) {
    const std::string out =
        expect_runs(fmt::format("{} --out {}", arguments, (base / name).string()));
    EXPECT_THAT(out, HasSubstr("its tokenizer is 'bert'")) << arguments;
    return base / name;
  };
  const fs::path imported = copied("import --from " + other.string(), "imported");
  EXPECT_EQ(scores(imported), scores(other));
  EXPECT_FALSE(fs::exists(imported / "tokenizer.json"));
  EXPECT_EQ(scores(copied("export --model " + other.string(), "saved")), scores(other));
  copied("retrofit --block-size 2 --model " + other.string(), "mixed");
  const fs::path again = copied("export --format gguf --model " + other.string(), "again.gguf");
  EXPECT_EQ(scores(again), scores(other));
  EXPECT_EQ(GgufFile(again).text("tokenizer.ggml.model", ""), "bert") << "carried along";

  // A directory without a tokenizer is one without a vocabulary there.
  const fs::path bare = base / "bare.gguf";
  EXPECT_THAT(expect_runs(fmt::format("export --format gguf --model {} --out {}", imported.string(),
                                      bare.string())),
              HasSubstr("without a tokenizer, so llama.cpp takes token ids only"));
  EXPECT_EQ(GgufFile(bare).text("tokenizer.ggml.model", ""), "no_vocab");
  EXPECT_EQ(scores(bare), scores(other));
}

// Token ids are enough to look at a model, and to train it.
TEST_F(GgufModel, WithoutATokenizerIsInspectedAndTrainedByIds) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) fs::remove(folder_ / name);
  const std::string model = " --model " + folder_.string();
  const Json looked = Json::parse(
      expect_runs("inspect --effects --tokens --json --ids 84,111,32,98,101,44" + model));
  EXPECT_EQ(looked["tokens"]["texts"][1], "111");
  EXPECT_TRUE(looked.contains("effects"));
  EXPECT_FALSE(looked.contains("by_token_class"));
  const Result text = run_program("inspect --tokens --text 'To be'" + model);
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.err, HasSubstr("--ids"));
  const Result wrong = run_program("inspect --ids 1,900" + model);
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--ids: "));

  const fs::path bin = folder_.parent_path() / "ids.bin", run = folder_.parent_path() / "run";
  std::string ids;
  for (int i = 0; i < 4000; ++i) ids += {static_cast<char>(i * i % 251), '\0'};
  write_file(bin, ids);
  const std::string train = fmt::format(
      "train --from {} --data {} --out {} --set train.steps=2 train.context=16 "
      "train.batch_size=2 train.eval_every=1 train.checkpoint_every=1",
      folder_.string(), bin.string(), run.string());
  expect_runs(train);
  EXPECT_NE(scores(run), scores(folder_));
  expect_runs(fmt::format("train --resume --out {} --set train.steps=3", run.string()));
  const Json loss = Json::parse(expect_runs(fmt::format("eval --run {} --json", run.string())));
  EXPECT_GT(loss["loss"].get<double>(), 0);
  EXPECT_FALSE(loss.contains("bits_per_byte"));
  const Result plain =
      run_program(fmt::format("train --from {} --data {} --out {}", folder_.string(),
                              text_.string(), (run / "text").string()));
  EXPECT_EQ(plain.exit_code, 1);
  EXPECT_THAT(plain.err, HasSubstr("no tokenizer for text here"));
}

TEST_F(GgufModel, IsRefusedWithAReason) {
  const std::string bytes = read_file(exported("f32"));
  const auto refusal = [&](const std::string& content) {
    write_file(folder_.parent_path() / "bad.gguf", content);
    const Result result =
        run_program("score --ids 1,2 --model " + (folder_.parent_path() / "bad.gguf").string());
    EXPECT_EQ(result.exit_code, 1);
    return result.err;
  };
  EXPECT_THAT(refusal(bytes.substr(0, bytes.size() / 2)), HasSubstr("lie outside the data"));
  EXPECT_THAT(refusal("text"), HasSubstr("bad.gguf: is not a GGUF file"));
  EXPECT_THAT(run_program("score --ids 1,2 --model none.gguf").err, HasSubstr("none.gguf"));
}

// A run that begins with its weights.
TEST_F(GgufModel, IsTrainedFurther) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += read_file(text_);
  write_file(text_, text);
  const fs::path run = folder_.parent_path() / "run";
  expect_runs(fmt::format("train --from {} --data {} --out {} --set train.steps=1",
                          exported("f32").string(), text_.string(), run.string()));
  EXPECT_GT(std::abs(loss(run) - loss(folder_)), 1e-9);
}

}  // namespace
}  // namespace attnres::testing::app_gguf_test
