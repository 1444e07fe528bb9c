#include "attnres/infer/text_engine.h"

#include <gmock/gmock.h>

#include "tests/pretrained/fixture_models.h"

namespace attnres::testing::text_engine_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(TextEngine, TellsWhatOfTheModelsFilesIsNotRead) {
  EXPECT_THAT(TextEngine(fixture("qwen3_tiny")).notes(), IsEmpty());
  const std::filesystem::path folder = copy_of("qwen3_tiny");
  write_file(folder / "generation_config.json", R"({"eos_token_id": 1000})");
  EXPECT_THAT(TextEngine(folder).notes(),
              ElementsAre(HasSubstr("generation_config.json: eos_token_id: not read: 1000")));
}

}  // namespace
}  // namespace attnres::testing::text_engine_test
