// Recipes that come with the program are known by their names.
#include <gmock/gmock.h>

#include <filesystem>

#include "tests/app/program.h"

namespace attnres::testing::recipe_names_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RecipeNames, AreTakenAsTheirFilesAre) {
  const std::string cluster = std::string(ATTNRES_SOURCE_DIR) + "/recipes/clusters/h100-node.json";
  const auto plan = [&](const std::string& recipe) {
    const Result result =
        run_program(fmt::format("plan --recipe '{}' --cluster '{}'", recipe, cluster));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string by_name = plan("large-block-attn-res");
  EXPECT_THAT(by_name, HasSubstr("large-block-attn-res"));
  EXPECT_EQ(by_name, plan(std::string(ATTNRES_SOURCE_DIR) + "/recipes/large-block-attn-res.json"));
  // What is missing is the text, not the recipe.
  const Result train =
      run_program("train --recipe tiny-residual --data /nonexistent --out /nowhere");
  EXPECT_NE(train.exit_code, 0);
  EXPECT_THAT(train.err, AllOf(HasSubstr("/nonexistent"), Not(HasSubstr("--recipe"))));
}

TEST(RecipeNames, AreListedWhereThereIsNoneOfThatName) {
  const Result result = run_program("train --recipe tiny-residul --out /nowhere");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("--recipe tiny-residul: no such file, and no recipe of "
                                          "that name is in"),
                                HasSubstr("tiny-block-attn-res, tiny-residual"),
                                HasSubstr("did you mean tiny-residual")));
  EXPECT_THAT(run_program("train --recipe ./tiny-residual --out /nowhere").err,
              HasSubstr("./tiny-residual"));
}

TEST(ModelNames, AreTakenAsTheirFoldersAre) {
  const auto score = [](const std::string& model) {
    const Result result =
        run_shell(fmt::format("cd / && attnres score --ids 1,2,3 --threads 1 --model '{}'", model));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(score("tiny-shakespeare"), score(ATTNRES_SOURCE_DIR "/models/tiny-shakespeare"));
  EXPECT_NE(score("tiny-shakespeare"), score("tiny-c"));
  const Result unknown = run_program("score --ids 1,2,3 --model tiny-shakspeare");
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("tiny-shakspeare: no such model directory"));
}

}  // namespace
}  // namespace attnres::testing::recipe_names_test
