// What inspect shows of a text: depth weights token by token, and what matters.
#include <ATen/ATen.h>
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "attnres/infer/evaluate.h"
#include "attnres/infer/inference_model.h"
#include "attnres/model/token_depth_weights.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/json.h"
#include "attnres/support/terminal.h"
#include "attnres/text/bytes.h"
#include "tests/app/program.h"
#include "tests/model/small_models.h"

namespace attnres::testing::inspect_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// How many layers the loss is worse without: the exponential of their shares' entropy.
double depth_of(const Json& layers) {
  double total = 0, entropy = 0;
  for (const Json& layer : layers) total += std::max(layer["change"].get<double>(), 0.0);
  for (const Json& layer : layers) {
    const double share = std::max(layer["change"].get<double>(), 0.0) / total;
    if (share > 0) entropy -= share * std::log(share);
  }
  return total > 0 ? std::exp(entropy) : 0;
}

// A byte model with random weights.
class Inspected : public ::testing::Test {
 protected:
  Inspected() { save(model_); }
  void save(const Transformer& model) const {
    save_model(model, folder_, 64, 0);
    ByteTokenizer().save(folder_);
  }
  Result run(const std::string& arguments) const {
    return run_program("inspect --model " + folder_.string() + " --threads 1 " + arguments);
  }
  Json json_of(const std::string& arguments) const {
    const Result result = run(arguments + " --json");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return parse_json(result.out, "inspect");
  }

  const fs::path folder_ = fresh_folder("inspected");
  static constexpr const char* kText = "Two words, 2 numbers: 10\nand <more> of them é.";
  const std::string text_ = fmt::format("--text '{}'", kText);
  const Transformer model_ =
      small_model(block_attn_res(), {.vocab_size = 256, .precision = at::kFloat});
};

TEST_F(Inspected, TokensHaveTheWeightsThatTheModelGivesThem) {
  const Json tokens = json_of("--tokens --text 'a <b'")["tokens"];
  EXPECT_EQ(tokens["ids"], (Json{'a', ' ', '<', 'b'}));
  EXPECT_EQ(tokens["texts"], (Json{"a", " ", "<", "b"}));
  const auto expected =
      token_depth_weights(model_, at::tensor(std::vector<int64_t>{'a', ' ', '<', 'b'}));
  ASSERT_EQ(tokens["sites"].size(), expected.size());
  for (size_t l = 0; l < expected.size(); ++l) {
    const Json& site = tokens["sites"][l];
    EXPECT_EQ(site["name"], expected[l].name);
    EXPECT_EQ(site["sources"], Json(expected[l].sources));
    for (size_t t = 0; t < 4; ++t) {
      for (size_t i = 0; i < expected[l].sources.size(); ++i) {
        EXPECT_NEAR(site["weights"][t][i].get<double>(), expected[l].weights[t][i], 1e-5);
      }
    }
  }
}

TEST_F(Inspected, TokensArePrintedALineEach) {
  const Result mean = run("--tokens " + text_);
  ASSERT_EQ(mean.exit_code, 0) << mean.err;
  EXPECT_THAT(mean.out, AllOf(HasSubstr("mean over 6 sites"), HasSubstr("e embedding, b block"),
                              HasSubstr("0  \"T\""), HasSubstr("\"\\n\""), HasSubstr("\"\\xc3\""),
                              Not(HasSubstr("parameters")), Not(HasSubstr("\x1b"))));
  const Result sites = run("--tokens --site 'attention 2' output --text abc");
  ASSERT_EQ(sites.exit_code, 0) << sites.err;
  EXPECT_THAT(sites.out, AllOf(HasSubstr("attention 2"), HasSubstr("output"),
                               Not(HasSubstr("mean over")), Not(HasSubstr("feed-forward"))));
  EXPECT_EQ(count_of(sites.out, "\"b\""), 2u);
}

// 23 sources of 2 characters fit into 80 columns, and 11 into 50.
TEST_F(Inspected, TokensAreCharactersOrPartsWhereNumbersDoNotFit) {
  save(small_model(attn_res(), {.layers = 11, .vocab_size = 256, .precision = at::kFloat}));
  const auto in_columns = [&](int columns) {
    return run_shell(
        fmt::format("export COLUMNS={}; attnres inspect --threads 1 --tokens --text "
                    "abc --model {}",
                    columns, folder_.string()));
  };
  const Result narrow = in_columns(80);
  ASSERT_EQ(narrow.exit_code, 0) << narrow.err;
  EXPECT_THAT(narrow.out, AllOf(HasSubstr("characters, of weights from: .\u00a01\u00a0%, :\u00a03"),
                                HasSubstr("\n" + std::string(23, ' ') + "e ")));
  EXPECT_EQ(count_of(narrow.out, "\"b\""), 1u);
  const Result parts = in_columns(50);
  EXPECT_EQ(count_of(parts.out, "\"b\""), 3u);
  EXPECT_EQ(count_of(parts.out, "  most\n"), 1u);
  EXPECT_THAT(in_columns(140).out, AllOf(HasSubstr("percent"), Not(HasSubstr("characters"))));
  for (const Result& result : {narrow, parts}) {
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(characters(line), 80u) << line;
  }
}

TEST_F(Inspected, TokensComeFromStandardInputToo) {
  const Result result =
      run_shell("printf xyz | attnres inspect --model " + folder_.string() + " --tokens --text -");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count_of(result.out, "\"z\""), 1u);
}

TEST_F(Inspected, TokensAreAsManyAsAskedFor) {
  const std::string longer = "--tokens --text " + std::string(100, 'x');
  EXPECT_EQ(json_of(longer)["tokens"]["ids"].size(), 64u);
  EXPECT_EQ(json_of(longer + " --max-tokens 5")["tokens"]["ids"].size(), 5u);
}

TEST_F(Inspected, TokensAreDrawnAPanelASite) {
  const std::string file = (folder_ / "tokens.svg").string();
  const Result result = run(text_ + " --draw-tokens " + file);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("drawing: " + file + "\n"));
  const std::string svg = read_file(file);
  EXPECT_TRUE(svg.starts_with("<svg xmlns="));
  EXPECT_EQ(count_of(svg, "<text"), count_of(svg, "</text>"));
  for (const char* panel : {"attention 1<", "feed-forward 3<", "output<", "&lt;", "partial sum<"}) {
    EXPECT_THAT(svg, HasSubstr(panel));
  }
  EXPECT_THAT(svg, Not(HasSubstr("><<")));
  ASSERT_EQ(run(text_ + " --site output --draw-tokens " + file).exit_code, 0);
  EXPECT_THAT(read_file(file), AllOf(HasSubstr("output<"), Not(HasSubstr("attention"))));
}

TEST_F(Inspected, EffectsHaveEveryPart) {
  const Json json = json_of("--effects " + text_);
  EXPECT_EQ(json["effects"]["layers"].size(), 3u);
  EXPECT_EQ(json["effects"]["sublayers"][1]["name"], "feed-forward 1");
  EXPECT_EQ(json["effects"]["sources"][1]["name"], "block 1");
  const std::vector<int32_t> ids = ByteTokenizer().encode(kText);
  EXPECT_NEAR(json["effects"]["loss"].get<double>(),
              evaluate(LocalModel(model_), ByteTokenizer(), {ids}, {.context = 64}).loss, 1e-5);
  EXPECT_NEAR(json["effective_depth"].get<double>(), depth_of(json["effects"]["layers"]), 1e-9);
  for (const char* key : {"output_rms", "state_rms", "gradient_rms"}) {
    EXPECT_EQ(json["magnitudes"][key].size(), 6u) << key;
  }
  EXPECT_EQ(json["similarity"]["sources"], (Json{"embedding", "block 1", "partial sum"}));
  EXPECT_EQ(json["similarity"]["cosine"].size(), 3u);
  EXPECT_EQ(json["by_position"][1]["name"], "1-3");
  EXPECT_EQ(json["by_position"][1]["tokens"], 3);
  EXPECT_EQ(json["sites"].size(), 7u);
  std::vector<std::string> classes;
  int64_t tokens = 0;
  for (const Json& group : json["by_token_class"]) {
    classes.push_back(group["name"]);
    tokens += group["tokens"].get<int64_t>();
    EXPECT_EQ(group["sites"].size(), 7u);
    EXPECT_TRUE(group["sites"][6].contains("entropy"));
  }
  EXPECT_EQ(classes,
            (std::vector<std::string>{"letters", "digits", "whitespace", "punctuation", "other"}));
  EXPECT_EQ(tokens, 46);  // bytes, but for the last, which is read by none
  const Result printed = run("--effects " + text_);
  ASSERT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_THAT(printed.out, AllOf(HasSubstr("effective depth"), HasSubstr("partial sum"),
                                 HasSubstr("gradient"), HasSubstr("cosine"), HasSubstr("4-15"),
                                 HasSubstr("whitespace"), Not(HasSubstr("parameters"))));
}

TEST_F(Inspected, EffectsLeaveOutWhatAModelDoesNotHave) {
  save(small_model(residual(), {.vocab_size = 256, .precision = at::kFloat}));
  const Json json = json_of("--all " + text_);
  EXPECT_EQ(json["effects"]["layers"].size(), 3u);
  EXPECT_EQ(json["similarity"]["sources"].size(), 7u);
  EXPECT_EQ(json["mixing_matrices"].size(), 1u);
  EXPECT_FALSE(json["effects"].contains("sources"));
  EXPECT_FALSE(json.contains("by_position"));
  EXPECT_FALSE(json.contains("by_token_class"));
  EXPECT_THAT(run("--tokens " + text_).out, HasSubstr("residual has no depth weights"));
  const Result drawn = run(text_ + " --draw-tokens " + (folder_ / "none.svg").string());
  EXPECT_EQ(drawn.exit_code, 1);
  EXPECT_THAT(drawn.err, HasSubstr("residual has no depth weights"));
  EXPECT_FALSE(fs::exists(folder_ / "none.svg"));
}

TEST_F(Inspected, ARunIsInspectedOnWhatItHeldOut) {
  const fs::path folder = fresh_folder("inspected_run");
  const std::string recipe = (folder / "recipe.json").string(), run_folder = folder / "run",
                    text = folder / "text";
  write_file(recipe, R"({"name": "blocks",
      "model": {"layers": 2, "width": 32, "heads": 4, "depth_mixing": {"type": "attn_res"}},
      "train": {"steps": 2, "batch_size": 2, "context": 16, "eval_every": 2, "eval_tokens": 64,
                "checkpoint_every": 2, "sample_tokens": 0}})");
  write_file(text, std::string(4000, 'a') + std::string(4000, 'b'));
  const Result trained =
      run_program(fmt::format("train --recipe {} --data {} --out {}", recipe, text, run_folder));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const std::string inspect = "inspect --model " + run_folder;
  const Result own = run_program(inspect + " --all --json");
  ASSERT_EQ(own.exit_code, 0) << own.err;
  const Json json = parse_json(own.out, "inspect");
  // The end of the text, of a's and b's, is held out: bytes that are all letters.
  EXPECT_EQ(json["by_token_class"][0]["name"], "letters");
  EXPECT_EQ(json["effects"]["sources"].size(), 5u);
  const double held_out = json["effects"]["loss"];
  const Result eval = run_program("eval --json --run " + run_folder);
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_NEAR(parse_json(eval.out, "eval")["loss"].get<double>(), held_out, 1e-4);
  // Without being asked for any of it, no text is needed.
  fs::remove(text);
  EXPECT_EQ(run_program(inspect).exit_code, 0);
  EXPECT_EQ(run_program(inspect + " --tokens").exit_code, 1);
}

TEST_F(Inspected, RefusesWhatItCannotShow) {
  const auto expect_refused = [&](const std::string& arguments, int code, const char* part) {
    const Result result = run(arguments);
    EXPECT_EQ(result.exit_code, code) << arguments;
    EXPECT_THAT(result.err, HasSubstr(part)) << arguments;
  };
  for (const char* what : {"--tokens", "--effects", "--all", "--matrix", "--draw-tokens x.svg"}) {
    expect_refused(what, 2, "--data, --text or --ids");
  }
  expect_refused("--site output --text abc", 2, "--tokens");
  expect_refused("--tokens --site 'attention 9' --text abc", 2, "attention 3");
  expect_refused("--tokens --text ''", 1, "empty");
  expect_refused("--text ''", 1, "the text has 0 tokens; give at least 2");
  for (const char* what : {"--effects", "--matrix", "--all"}) {
    expect_refused(std::string(what) + " --text a", 1, "the text has 1 token; give at least 2");
  }
  expect_refused("--data " + (folder_ / "model.safetensors").string(), 1, "is a model's weights");
  expect_refused("--data x --text abc", 2, "--text");
  expect_refused("--text abc --draw-tokens " + (folder_ / "nowhere/x.svg").string(), 1, "nowhere");
}

}  // namespace
}  // namespace attnres::testing::inspect_test
