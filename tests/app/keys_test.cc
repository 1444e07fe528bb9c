#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/study/study_recipe.h"
#include "attnres/train/recipe/recipe.h"
#include "tests/app/program.h"

namespace attnres::testing::keys_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string source(const std::string& path) {
  return read_file(std::string(ATTNRES_SOURCE_DIR) + "/" + path);
}

TEST(Keys, PageAndSchemasAreWhatTheProgramPrints) {
  for (const auto& [arguments, file] :
       {std::pair("train --keys --markdown", "docs/recipe.md"),
        std::pair("train --keys --schema", "recipes/schemas/recipe.json"),
        std::pair("study --keys --schema", "recipes/schemas/study.json")}) {
    const Result result = run_program(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, source(file)) << "write it again: attnres " << arguments << " > " << file;
  }
}

TEST(Keys, AreShownWithAllThatIsKnownOfThem) {
  const Result result = run_shell("COLUMNS=80 attnres train --keys");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("  train.warmup = 100\n"
                                    "    steps of linear warm-up\n"
                                    "    whole number, 0 or more\n"));
  EXPECT_THAT(result.out, HasSubstr("  model.depth_mixing.type (required)\n"));
  EXPECT_THAT(result.out, HasSubstr("\nmodel.depth_mixing, type mhc: "));
  EXPECT_THAT(result.out, HasSubstr("  model.depth_mixing.window (if left out: all)\n"));
  for (size_t begin = 0; begin < result.out.size();) {
    const size_t end = result.out.find('\n', begin);
    EXPECT_LE(end - begin, 80u) << result.out.substr(begin, end - begin);
    begin = end + 1;
  }
  const Result study = run_program("study --keys");
  for (const char* key : {"  axes.<axis>.<arm>.from\n", "  figures[].kind (required)\n",
                          "  tune.values (required)\n", "  seeds = 1\n"}) {
    EXPECT_THAT(study.out, HasSubstr(key));
  }
}

TEST(Keys, ThatBeginWithAWordAreShownAlone) {
  const Result result = run_program("train --keys model.experts");
  EXPECT_THAT(result.out,
              AllOf(StartsWith("model.experts: "), HasSubstr("  model.experts.count = 0"),
                    Not(HasSubstr("model.layers"))));
  const Result none = run_program("train --keys train.warmupp");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("--keys train.warmupp: no key begins so; the nearest is "
                                  "train.warmup"));
  EXPECT_EQ(run_program("train --schema").exit_code, 2);
}

TEST(Keys, AreJsonForPrograms) {
  const Json list = Json::parse(run_program("train --keys --json").out);
  const auto entry = [&](const std::string& key) {
    return *std::find_if(list.begin(), list.end(), [&](const Json& e) { return e["key"] == key; });
  };
  EXPECT_EQ(entry("train.beta1"), Json::parse(R"({"key": "train.beta1", "type": "number",
      "required": false, "default": 0.9, "least": 0.0, "below": 1.0,
      "meaning": "of AdamW: decay of the first moment"})"));
  EXPECT_EQ(entry("data.order")["choices"][1]["value"], "drawn");
  EXPECT_EQ(entry("model.depth_mixing.sinkhorn_rounds")["mechanism"], "mhc");
  EXPECT_EQ(entry("model.depth_mixing.num_blocks")["if_left_out"], "block_size says it");
  const Json study = Json::parse(run_program("study --keys tune --json").out);
  EXPECT_EQ(study.size(), 6u);
}

}  // namespace
}  // namespace attnres::testing::keys_test
