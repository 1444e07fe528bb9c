#include "attnres/study/study_schema.h"

#include <gmock/gmock.h>

#include "attnres/study/study_grid.h"
#include "attnres/support/error.h"
#include "tests/study/tiny_study.h"
#include "tests/support/json_schema.h"
#include "tests/text/test_files.h"

namespace attnres::testing::study_schema_test {
namespace {

namespace fs = std::filesystem;

const JsonSchema& schema() {
  static const JsonSchema studies(study_schema());
  return studies;
}

// Empty where it is taken.
std::string refusal(const Json& study) {
  const fs::path file = write_study(fresh_folder("study") / "s.json", study);
  try {
    const StudyRecipe read = read_study(file);
    plan_runs(read);
    plan_runs(read, {.smoke = true});
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

// The tiny study with this in the place that a pointer names.
Json with(const char* pointer, const char* value) {
  Json study = tiny_study();
  study[Json::json_pointer(pointer)] = Json::parse(value);
  return study;
}

TEST(StudySchema, TakesEveryStudyThatComesWithTheProgram) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(ATTNRES_SOURCE_DIR "/recipes/studies")) {
    EXPECT_TRUE(schema().accepts(read_json(entry.path()))) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 10);
}

TEST(StudySchema, TakesWhatTheProgramTakes) {
  const std::vector<Json> studies = {
      tiny_study(),
      with("/$schema", R"("../schemas/study.json")"),
      with("/baseline", R"({"mixing": "residual"})"),
      with("/figures", R"([{"kind": "curve", "x": "mixing"}, {"kind": "overhead"}])"),
      with("/chosen", R"({"sentences": ["a"], "size": 3})"),
      with("/axes/rates", R"({"a": {"train.rates": {"*": 2}}, "b": {"train.rates.all": 0.5}})"),
      with("/axes/mixing", R"({"a": {}, "b": {"from": "a", "train.clip": 0}})"),
      with("/axes/mixing", R"({"a": {"model.depth_mixing.type": "mhc",
                                     "model.depth_mixing.streams": 16}})"),
      with("/tune", R"({"key": "train.learning_rate", "values": [0.1, 0.2], "axis": "mixing",
                        "arm": "residual", "own": false, "set": {"train.warmup": 1}})"),
  };
  for (const Json& study : studies) {
    EXPECT_TRUE(schema().accepts(study)) << study;
    EXPECT_EQ(refusal(study), "") << study;
  }
}

TEST(StudySchema, RefusesWhatTheProgramRefuses) {
  const std::vector<Json> studies = {
      with("/axis", "1"),
      with("/name", "3"),
      with("/base", "3"),
      with("/base/train", R"({"stepz": 3})"),
      with("/axes", "[]"),
      with("/axes/mixing", "3"),
      with("/axes/mixing/block", "3"),
      with("/axes/mixing/block/from", "3"),
      with("/axes/mixing/block/train.stepz", "3"),
      with("/axes/mixing/block/train.steps", "0"),
      with("/axes/mixing/block/train.seed", "3"),
      with("/axes/mixing/block/train", "{}"),
      with("/axes/mixing/block/name", R"("a")"),
      with("/axes/mixing/block/model.depth_mixing.type", R"("magic")"),
      with("/axes/mixing/block/model.depth_mixing.blocks", "2"),
      with("/axes/mixing/block/train.rates.all", "-1"),
      with("/baseline", R"({"mixing": 3})"),
      with("/seeds", "0"),
      with("/seeds", "10001"),
      with("/figures", "{}"),
      with("/figures", R"([{"kind": "curves"}])"),
      with("/figures", R"([{"x": "mixing"}])"),
      with("/inspect", "1"),
      with("/smoke/from", R"("a")"),
      with("/smoke/train.steps", R"("a")"),
      with("/tune", R"({"values": [0.1, 0.2]})"),
      with("/tune", R"({"key": "train.learning_rate", "values": ["a", "b"]})"),
      with("/tune", R"({"key": "train.learning_rate", "values": [1, 2], "sets": {}})"),
  };
  for (const Json& study : studies) {
    EXPECT_FALSE(schema().accepts(study)) << study;
    EXPECT_NE(refusal(study), "") << study;
  }
  for (const char* key : {"name", "question", "base", "axes"}) {
    Json study = tiny_study();
    study.erase(key);
    EXPECT_FALSE(schema().accepts(study)) << key;
    EXPECT_NE(refusal(study), "") << key;
  }
}

}  // namespace
}  // namespace attnres::testing::study_schema_test
