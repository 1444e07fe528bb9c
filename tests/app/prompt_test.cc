// What generate takes and gives: text, standard input, files and token ids.
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attnres/infer/generate.h"
#include "attnres/infer/inference_model.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/text/bytes.h"
#include "tests/app/program.h"
#include "tests/model/small_models.h"

namespace attnres::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Lt;

std::string quoted_path(const fs::path& path) {
  return fmt::format("'{}'", path.string());
}

// A byte model with random weights and a context of 64.
class Prompt : public ::testing::Test {
 protected:
  Prompt() {
    save_model(model_, folder_, /*context=*/64, /*document_ids=*/0);
    ByteTokenizer().save(folder_);
  }
  std::string generating(const std::string& arguments) const {
    return fmt::format("generate --model {} --threads 1 --temperature 0 {}", quoted_path(folder_),
                       arguments);
  }
  Result run(const std::string& arguments) const { return run_program(generating(arguments)); }
  Json json(const std::string& arguments) const {
    const Result result = run(arguments + " --json");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out);
  }
  // The greedy continuation.
  std::vector<int32_t> expected(const std::vector<int32_t>& prompt, int64_t max_tokens) const {
    GenerationSettings settings;
    settings.sampling.temperature = 0;
    settings.max_tokens = max_tokens;
    settings.ends = {0};
    return generate(LocalModel(model_), prompt, 64, settings).tokens;
  }

  const fs::path folder_ = fresh_folder("model"), text_ = fresh_folder("text") / "prompt.txt";
  const Transformer model_ =
      small_model(block_attn_res(), {.vocab_size = 256, .precision = at::kFloat});
};

TEST_F(Prompt, ComesFromStandardInputOrAFileAsItIs) {
  write_text(text_, "in depth\n");
  const Json of_option = json("--max-tokens 9 --prompt 'in depth\n'");
  EXPECT_EQ(of_option["tokens"].get<std::vector<int32_t>>(),
            expected(ByteTokenizer().encode("in depth\n"), 9));
  EXPECT_EQ(json("--max-tokens 9 --prompt-file " + quoted_path(text_)), of_option);
  const Result piped = run_shell(fmt::format(
      "attnres {} < {}", generating("--max-tokens 9 --json --prompt -"), quoted_path(text_)));
  ASSERT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_EQ(Json::parse(piped.out), of_option);
  EXPECT_NE(json("--max-tokens 9 --prompt 'in depth'"), of_option);
}

TEST_F(Prompt, IsOnlyOne) {
  for (const char* two :
       {"--prompt a --prompt-file b", "--prompt a --ids 1", "--ids 1 --prompt-file b"}) {
    const Result result = run(two);
    EXPECT_EQ(result.exit_code, 2) << two;
    EXPECT_THAT(result.err, HasSubstr("excludes")) << two;
  }
  const Result nowhere = run("--prompt-file nowhere.txt");
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("nowhere.txt"));
}

TEST_F(Prompt, ThatIsTooLongIsAnErrorOrKeepsItsEnd) {
  const std::string text = std::string(30, 'x') + std::string(70, 'y') + "the_end";
  for (const std::string& prompt : {"--prompt " + text, std::string("--ids ") + [] {
                                      std::string ids = "1";
                                      for (int i = 0; i < 63; ++i) ids += ",1";
                                      return ids;
                                    }()}) {
    const Result refused = run(prompt);
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_EQ(refused.out, "");
    EXPECT_THAT(refused.err,
                AllOf(HasSubstr("tokens"), HasSubstr("context is 64"), HasSubstr("--truncate")));
  }
  // Room for 10 tokens, or for half of the context at most.
  for (const auto& [max_tokens, kept] : {std::pair{10, 54}, {200, 32}}) {
    const std::string arguments = fmt::format("--max-tokens {} ", max_tokens);
    const Result result = run(fmt::format("{}--truncate --json --prompt {}", arguments, text));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr(fmt::format("107 tokens, only the last {}", kept)));
    const std::string end = text.substr(text.size() - kept);
    EXPECT_EQ(Json::parse(result.out)["tokens"],
              json(fmt::format("{}--prompt {}", arguments, end))["tokens"]);
  }
  const Result fits = run("--max-tokens 10 --truncate --prompt short");
  EXPECT_EQ(fits.err, "");
  EXPECT_EQ(fits.out, run("--max-tokens 10 --prompt short").out);
}

TEST_F(Prompt, MayBeTokenIdsWithoutATokenizer) {
  const std::vector<int32_t> tokens = expected({5, 17, 3}, 6);
  fs::remove(folder_ / "tokenizer.json");
  const Json found = json("--ids 5,17,3 --max-tokens 6");
  EXPECT_EQ(found["ids"], (Json{5, 17, 3}));
  EXPECT_EQ(found["tokens"].get<std::vector<int32_t>>(), tokens);
  EXPECT_EQ(run("--ids '5 17 3' --max-tokens 6").out, fmt::format("{}\n", fmt::join(tokens, ",")));
  const Result text = run("--prompt a");
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.err, AllOf(HasSubstr("no tokenizer"), HasSubstr("--ids")));
  for (const auto& [ids, part] : {std::pair{"''", "got none"},
                                  {"5,,3", "after a comma"},
                                  {"5,256", "0 to 255"},
                                  {"5,x", "'x' is not a token id"}}) {
    const Result wrong = run(std::string("--ids ") + ids);
    EXPECT_EQ(wrong.exit_code, 2) << ids;
    EXPECT_THAT(wrong.err, AllOf(HasSubstr("--ids: "), HasSubstr(part)));
  }
}

TEST_F(Prompt, OfIdsEndsWhereTheConfigurationSays) {
  const std::vector<int32_t> tokens = expected({5, 17, 3}, 6);
  Json config = parse_json(read_file(folder_ / "config.json"), "config.json");
  const Json ends = {255, tokens[3]};
  config["eos_token_id"] = ends;
  write_text(folder_ / "config.json", config.dump());
  const Json found = json("--ids 5,17,3 --max-tokens 6");
  EXPECT_EQ(found["stop"], "end_of_document");
  const auto end = std::find(tokens.begin(), tokens.end(), tokens[3]);
  EXPECT_EQ(found["tokens"], std::vector<int32_t>(tokens.begin(), end));
}

TEST_F(Prompt, SettingsAreNamedAsTheOptionsAre) {
  for (const auto& [wrong, said] :
       {std::pair{"--top-p 1.5", "--top-p: expected more than 0 and at most 1, got 1.5"},
        {"--top-k -1", "--top-k: expected a whole number, 0 or more, got -1"},
        {"--seed -1", "--seed: expected a whole number, 0 or more, got -1"},
        {"--temperature hot", "--temperature: expected a number, got hot"},
        {"--seed 18446744073709551616", "--seed: expected a whole number"},
        {"--max-tokens 9223372036854775808", "--max-tokens: expected a whole number from 1 to"}}) {
    const Result result = run(std::string("--prompt a ") + wrong);
    EXPECT_EQ(result.exit_code, 2) << wrong;
    EXPECT_THAT(result.err, HasSubstr(said));
    EXPECT_LT(result.err.size(), 200u);
  }
  const Result cold =
      run_program(fmt::format("generate --model {} --temperature -1", folder_.string()));
  EXPECT_EQ(cold.exit_code, 2);
  EXPECT_THAT(cold.err, HasSubstr("error: --temperature: expected 0"));
  EXPECT_EQ(run("--prompt a --max-tokens 1 --seed 18446744073709551615").exit_code, 0);
}

// A vocabulary that is padded, with an embedding for more tokens than the tokenizer has.
TEST_F(Prompt, IsContinuedWithTokensThatHaveAText) {
  const Transformer padded =
      small_model(block_attn_res(), {.vocab_size = 300, .precision = at::kFloat});
  for (const Parameter& parameter : padded.parameters().all()) {
    if (parameter.kind != ParameterKind::head) continue;
    at::Tensor head_VD = parameter.tensor.detach();
    head_VD[298] = head_VD[0] * 100;  // one of them is the most likely token
    head_VD[299] = head_VD[0] * -100;
  }
  save_model(padded, folder_, /*context=*/64, /*document_ids=*/0);
  EXPECT_GE(json("--ids 97 --max-tokens 1")["tokens"][0].get<int>(), 298);
  const Json found = json("--prompt a --max-tokens 20");
  EXPECT_THAT(found["tokens"].get<std::vector<int32_t>>(), Each(Lt(256)));
}

}  // namespace
}  // namespace attnres::testing
