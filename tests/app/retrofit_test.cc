// The import and retrofit commands.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>

#include "attnres/pretrained/model_directory.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"
#include "tests/app/program.h"

namespace attnres::testing::retrofit_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kFixtures = std::string(ATTNRES_SOURCE_DIR) + "/tests/fixtures/";

class Imported : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    make_folder(folder_);
  }
  std::string at(const char* name) const { return (folder_ / name).string(); }

  // Log-probabilities of a few tokens.
  std::vector<double> scores(const std::string& model) {
    const Result result =
        run_program(fmt::format("score --model {} --ids 97,97,98,98,10,97 --json", model));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return parse_json(result.out, "score")["logprobs"].get<std::vector<double>>();
  }

  // A run of a small residual model, which is a Llama directory.
  std::string trained() {
    const std::string recipe = at("plain.json");
    write_file(recipe, R"({"name": "plain",
        "model": {"layers": 3, "width": 32, "heads": 4, "init_std": 0.3},
        "train": {"steps": 4, "batch_size": 2, "context": 16, "eval_every": 4, "eval_tokens": 64,
                  "checkpoint_every": 4, "sample_tokens": 0}})");
    write_file(at("text"), std::string(4000, 'a') + std::string(4000, 'b'));
    const Result result = run_program(
        fmt::format("train --recipe {} --data {} --out {}", recipe, at("text"), at("run")));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return at("run");
  }

  const fs::path folder_ = fs::path(::testing::TempDir()) / "imported";
};

TEST_F(Imported, AModelKeepsItsScores) {
  const std::string run = trained(), out = at("copy");
  const Result result = run_program(fmt::format("import --from {} --out {}", run, out));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_json(fs::path(out) / "config.json")["model_type"], "llama");
  EXPECT_EQ(scores(out), scores(run));
}

// The files of a tokenizer that is not read here, beside one whose code is not known.
TEST_F(Imported, AModelKeepsAnUnknownTokenizer) {
  const fs::path from = at("from");
  fs::copy(kFixtures + "llama_tiny", from);
  const std::map<std::string, std::string> files = {
      {"tokenizer.json", R"({"model": {"type": "WordPiece", "vocab": {"a": 0}}})"},
      {"tokenizer_config.json", R"({"eos_token": "<|eot|>"})"},
      {"special_tokens_map.json", "{ }"},
      {"tiktoken.model", "YQ== 0\n"},
      {"tokenization_kimi.py", "class TikTokenTokenizer: pass\n"},
      {"chat_template.jinja", "{{ messages }}"}};
  for (const auto& [name, text] : files) write_file(from / name, text);
  write_file(from / "pytorch_model.txt", "not a tokenizer's");
  Json config = read_json(from / "config.json");
  config["bos_token_id"] = 1;
  const Json ends = {45, 46};
  config["eos_token_id"] = ends;
  write_file(from / "config.json", config.dump());

  const std::string ids = "--ids 5,17,3 --temperature 0 --max-tokens 8 --threads 1";
  const Result generated = run_program(fmt::format("generate --model {} {}", from.string(), ids));
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
  const auto expect_carried = [&](const std::string& arguments) {
    SCOPED_TRACE(arguments);
    const fs::path out = at("out");
    fs::remove_all(out);
    const Result result = run_program(fmt::format("{} --out {}", arguments, out.string()));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (const auto& [name, text] : files) EXPECT_EQ(read_file(out / name), text) << name;
    EXPECT_FALSE(fs::exists(out / "pytorch_model.txt"));
    const Json written = read_json(out / "config.json");
    EXPECT_EQ(written["bos_token_id"], 1);
    EXPECT_EQ(written["eos_token_id"], ends);
    EXPECT_EQ(run_program(fmt::format("inspect --model {}", out.string())).exit_code, 0);
    EXPECT_EQ(run_program(fmt::format("generate --model {} {}", out.string(), ids)).out,
              generated.out);
  };
  expect_carried(fmt::format("import --from {}", from.string()));
  expect_carried(fmt::format("export --format huggingface --model {}", from.string()));
  expect_carried(fmt::format("retrofit --block-size 2 --model {}", from.string()));

  const Result imported =
      run_program(fmt::format("import --from {} --out {}", from.string(), at("said")));
  EXPECT_THAT(imported.out, AllOf(HasSubstr("carried along unread"), HasSubstr("tiktoken.model")));
  // What needs text says so.
  for (const std::string& command :
       {"generate --prompt a --model " + from.string(),
        "eval --data " + (from / "tiktoken.model").string() + " --model " + from.string()}) {
    const Result result = run_program(command);
    EXPECT_EQ(result.exit_code, 1) << command;
    EXPECT_THAT(result.err, AllOf(HasSubstr("WordPiece"), HasSubstr("--ids")));
  }
}

TEST_F(Imported, AModelMayHaveNoTokenizer) {
  const std::string from = kFixtures + "kimi_linear_tiny";
  const Result result = run_program(fmt::format("import --from {} --out {}", from, at("x")));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("no tokenizer"));
}

TEST_F(Imported, AModelNeedsATokenizerThatFits) {
  const std::string from = kFixtures + "kimi_linear_tiny";  // has none, and 56 tokens
  const Result bytes = run_program(fmt::format("import --bytes --from {} --out {}", from, at("x")));
  EXPECT_EQ(bytes.exit_code, 1);
  EXPECT_THAT(bytes.err, AllOf(HasSubstr("256"), HasSubstr("56")));
  EXPECT_FALSE(fs::exists(at("x")));
}

TEST_F(Imported, AResidualModelBecomesAnAttnResModelThatComputesTheSame) {
  const std::string run = trained(), out = at("retrofitted");
  const Result result =
      run_program(fmt::format("retrofit --model {} --block-size 4 --out {}", run, out));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("differ by at most"));

  const Json config = read_json(fs::path(out) / "config.json");
  EXPECT_EQ(config["model_type"], "attnres");
  EXPECT_EQ(config["attnres"]["depth_mixing"]["norm_eps"], "per_source_count");
  const std::vector<double> before = scores(run), after = scores(out);
  ASSERT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-5);
}

// Into Delta Attention Residuals without a change: their gates are zero.
TEST_F(Imported, AResidualModelBecomesADeltaModelThatComputesTheSame) {
  const std::string run = trained();
  for (const auto& [how, size] :
       {std::pair<std::string, int>{"--full", 1}, {"--block-size 4", 4}}) {
    const std::string out = at(size == 1 ? "full" : "blocks");
    const Result result = run_program(
        fmt::format("retrofit --model {} --mechanism delta_attn_res {} --out {}", run, how, out));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("differ by at most 0.0e+00"));
    const Json mixing = read_json(fs::path(out) / "config.json")["attnres"]["depth_mixing"];
    EXPECT_EQ(mixing, (Json{{"type", "delta_attn_res"}, {"block_size", size}, {"gate", "zero"}}));
    EXPECT_EQ(scores(out), scores(run));
  }
  const Result unknown =
      run_program(fmt::format("retrofit --model {} --mechanism mhc --full --out {}", run, at("x")));
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("--mechanism"), HasSubstr("delta_attn_res")));
  const Result no_size = run_program(
      fmt::format("retrofit --model {} --mechanism delta_attn_res --out {}", run, at("x")));
  EXPECT_EQ(no_size.exit_code, 2);
  EXPECT_THAT(no_size.err, HasSubstr("--block-size S"));
}

TEST_F(Imported, AFolderMayBeNamedWithASlash) {
  const std::string run = trained(), out = at("copy");
  for (const std::string& command :
       {"import --from " + run + "/", "retrofit --full --model " + run, "export --model " + run}) {
    for (const char* end : {"/", "//", "/."}) {
      fs::remove_all(out);
      const Result result = run_program(fmt::format("{} --out {}{}", command, out, end));
      ASSERT_EQ(result.exit_code, 0) << command << " " << result.err;
      EXPECT_THAT(result.out, HasSubstr(out + ": "));
      EXPECT_NO_THROW(load_model(out));
      for (const auto& entry : fs::directory_iterator(out)) {
        EXPECT_FALSE(entry.path().filename().string().starts_with('.')) << entry.path();
      }
    }
    const Result empty = run_program(command + " --out ''");
    EXPECT_EQ(empty.exit_code, 2);
    EXPECT_THAT(empty.err, HasSubstr("--out: expected a path, got an empty one"));
  }
  const Result gguf =
      run_program(fmt::format("export --format gguf --model {} --out {}/", run, at("model.gguf")));
  EXPECT_EQ(gguf.exit_code, 0) << gguf.err;
  EXPECT_TRUE(fs::is_regular_file(at("model.gguf")));
}

TEST_F(Imported, OnlyOneProcessMakesAModel) {
  const std::string run = trained(), out = at("deep/er/copy");
  const fs::path parent = fs::path(out).parent_path();
  for (const std::string& command :
       {"import --from " + run, "retrofit --full --model " + run, "export --model " + run,
        "export --format gguf --model " + run}) {
    fs::remove_all(parent);
    make_folder(parent);
    const std::string line = fmt::format("{} --out {}", command, out);
    {
      const PathLock lock(out);
      const Result result = run_program(line);
      EXPECT_EQ(result.exit_code, 1) << command;
      EXPECT_THAT(result.err, HasSubstr(out + ": in use by another attnres process"));
      EXPECT_FALSE(fs::exists(out));
    }
    EXPECT_EQ(run_program(line).exit_code, 0) << command;
    const fs::directory_iterator names(parent);
    EXPECT_EQ(std::distance(begin(names), end(names)), 1) << "the model and nothing else";
  }
}

// However they overlap, one wins, and what stands is whole.
TEST_F(Imported, OfTwoAtOnceOneSucceeds) {
  const std::string run = trained(), out = at("copy");
  const Result both = run_shell(
      fmt::format("attnres export --model {0} --out {1} >/dev/null & first=$!; "
                  "attnres export --model {0} --out {1} >/dev/null; echo $?; wait $first; echo $?",
                  run, out));
  EXPECT_THAT(both.out, ::testing::AnyOf("0\n1\n", "1\n0\n")) << both.err;
  EXPECT_EQ(scores(out), scores(run));
}

TEST_F(Imported, RetrofitSaysWhatItNeeds) {
  const std::string model = std::string(ATTNRES_SOURCE_DIR) + "/models/tiny-shakespeare";
  const Result neither = run_program(fmt::format("retrofit --model {} --out {}", model, at("x")));
  EXPECT_EQ(neither.exit_code, 2);
  EXPECT_THAT(neither.err, AllOf(HasSubstr("--block-size"), HasSubstr("--full")));
  const Result again =
      run_program(fmt::format("retrofit --full --model {} --out {}", model, at("x")));
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("plain residual connections"));
}

}  // namespace
}  // namespace attnres::testing::retrofit_test
