// Models whose tokenizer begins texts with a token of its own, as Llama 3's does.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "attnres/infer/generate.h"
#include "attnres/infer/inference_model.h"
#include "attnres/infer/score.h"
#include "attnres/infer/text_engine.h"
#include "attnres/pretrained/save_model.h"
#include "tests/app/program.h"
#include "tests/model/small_models.h"

namespace attnres::testing::begin_of_text_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

constexpr int32_t kBegin = 0, kEnd = 2;  // of the fixture

// Random weights and a context of 64.
class BeginOfText : public ::testing::Test {
 protected:
  BeginOfText() {
    save_model(model_, folder_, /*context=*/64, /*document_ids=*/kEnd);
    tokenizer_->save(folder_);
  }
  Result run(const std::string& arguments) const {
    const size_t space = arguments.find(' ');
    return run_program(fmt::format("{} --model '{}' --threads 1 {}", arguments.substr(0, space),
                                   folder_.string(), arguments.substr(space)));
  }
  Json json(const std::string& arguments) const {
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? Json::parse(result.out) : Json();
  }
  Ids begun(const std::string& text) const {
    Ids ids = {kBegin};
    for (const int32_t id : tokenizer_->encode(text)) ids.push_back(id);
    return ids;
  }
  // The greedy continuation.
  Ids expected(const Ids& prompt) const {
    GenerationSettings settings;
    settings.sampling.temperature = 0;
    settings.max_tokens = 9;
    settings.ends = {kEnd};
    settings.vocabulary = tokenizer_->vocab_size();
    return generate(LocalModel(model_), prompt, 64, settings).tokens;
  }

  const fs::path folder_ = fresh_folder("model");
  const std::unique_ptr<Tokenizer> tokenizer_ =
      load_tokenizer(fs::path(ATTNRES_SOURCE_DIR) / "tests/fixtures/tokenizers/llama3");
  const Transformer model_ =
      small_model(residual(), {.vocab_size = tokenizer_->vocab_size(), .precision = at::kFloat});
};

TEST_F(BeginOfText, IsToldByItsName) {
  EXPECT_EQ(TextEngine(folder_).model().begin_of_text, "<|begin_of_text|>");
}

TEST_F(BeginOfText, StandsBeforePrompts) {
  const std::string greedy = "generate --temperature 0 --max-tokens 9 --json ";
  const std::string text = "the build takes";
  const Ids with = expected(begun(text));
  EXPECT_NE(with, expected(tokenizer_->encode(text))) << "it makes a difference";
  EXPECT_EQ(json(greedy + "--prompt '" + text + "'")["tokens"], with);
  EXPECT_EQ(json(greedy + "--prompt '<|begin_of_text|>" + text + "'")["tokens"], with);
  EXPECT_EQ(json(greedy + "--prompt ''")["tokens"], expected({kBegin}));
  EXPECT_EQ(json(greedy + "--ids 40,41")["tokens"], expected({40, 41})) << "as they are given";
  const fs::path prompts = folder_ / "prompts.jsonl", out = folder_ / "out.jsonl";
  write_text(prompts, Json{{"prompt", text}}.dump() + "\n" + R"({"ids": [40, 41]})");
  const Result many =
      run(fmt::format("generate --temperature 0 --max-tokens 9 --prompts '{}' --out '{}'",
                      prompts.string(), out.string()));
  ASSERT_EQ(many.exit_code, 0) << many.err;
  const std::string lines = read_file(out);
  const size_t first = lines.find('\n');
  EXPECT_EQ(Json::parse(lines.substr(0, first))["tokens"], with);
  EXPECT_EQ(Json::parse(lines.substr(first + 1))["tokens"], expected({40, 41}));
}

TEST_F(BeginOfText, StaysWhereAPromptIsCut) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += fmt::format("{} ", i);
  const Ids ids = begun(text);
  Ids kept = {kBegin};
  kept.insert(kept.end(), ids.end() - 54, ids.end());  // beside room for 9
  EXPECT_EQ(json("generate --temperature 0 --max-tokens 9 --json --truncate --prompt '" + text +
                 "'")["tokens"],
            expected(kept));
}

TEST_F(BeginOfText, BeginsWhatIsScored) {
  const std::string text = "the build takes the tests and the pages of the docs, in turn";
  write_text(folder_ / "text.txt", text);
  Ids ids = tokenizer_->encode(text);
  ids.push_back(kEnd);
  for (const int64_t context : {64, 8}) {
    double nats = 0;
    for (size_t at = 0; at < ids.size(); at += context - 1) {
      Ids window = {kBegin};
      const size_t end = std::min(ids.size(), at + context - 1);
      window.insert(window.end(), ids.begin() + at, ids.begin() + end);
      for (const double logprob : score_sequence(LocalModel(model_), window, 64)) nats -= logprob;
    }
    const Json scored = json(fmt::format("eval --json --context {} --data '{}'", context,
                                         (folder_ / "text.txt").string()));
    EXPECT_EQ(scored["tokens"], ids.size());
    EXPECT_NEAR(scored["loss"], nats / static_cast<double>(ids.size()), 1e-5);
  }
}

TEST_F(BeginOfText, GoesWithTheModel) {
  const std::string greedy = "--temperature 0 --max-tokens 9 --json --prompt 'the build takes'";
  const fs::path gguf = folder_ / "model.gguf", back = folder_ / "back";
  const Result exported = run_program(
      fmt::format("export --model '{}' --format gguf --out '{}'", folder_.string(), gguf.string()));
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  const Result imported =
      run_program(fmt::format("import --from '{}' --out '{}'", gguf.string(), back.string()));
  ASSERT_EQ(imported.exit_code, 0) << imported.err;
  const Ids with = expected(begun("the build takes"));
  for (const fs::path& model : {gguf, back}) {
    const Result result =
        run_program(fmt::format("generate --model '{}' --threads 1 {}", model.string(), greedy));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(Json::parse(result.out)["tokens"], with) << model;
  }
}

TEST_F(BeginOfText, IsShownByTokenize) {
  const auto ids = [&](const std::string& options) {
    const Result result = run_shell(fmt::format(
        "printf 'the build' | attnres tokenize --model '{}' {}", folder_.string(), options));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out)["ids"].get<Ids>();
  };
  EXPECT_EQ(ids("--add-special-tokens"), begun("the build"));
  EXPECT_EQ(ids(""), tokenizer_->encode("the build"));
}

}  // namespace
}  // namespace attnres::testing::begin_of_text_test
