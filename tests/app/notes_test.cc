// What of a model's files is not read: every command says it, once, beside its results.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/formats/tensor_files.h"
#include "attnres/support/json.h"
#include "tests/app/program.h"
#include "tests/pretrained/fixture_models.h"

namespace attnres::testing::notes_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class ModelWithNotes : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    const SafetensorsFile file(fixture("qwen3_tiny") / "model.safetensors");
    for (const std::string& name : file.names()) tensors.emplace_back(name, file.read(name));
    tensors.emplace_back("visual.patch_embed.weight", file.read(file.names()[0]));
    write_safetensors(folder_ / "model.safetensors", tensors);
  }
  // With the one line in the errors, and none of it in the results.
  static std::string runs(const std::string& arguments) {
    const Result result = run_program(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string note = "model.safetensors: 1 tensor of images or sound is not read\n";
    const size_t at = result.err.find("note: ");
    EXPECT_THAT(result.err.substr(std::min(at, result.err.size())), HasSubstr(note)) << arguments;
    EXPECT_EQ(result.err.find("note: ", at + 1), std::string::npos) << arguments;
    EXPECT_THAT(result.out, Not(HasSubstr("not read"))) << arguments;
    return result.out;
  }

  const fs::path folder_ = copy_of("qwen3_tiny");
};

TEST_F(ModelWithNotes, SaysThemOnceWithEveryCommand) {
  const std::string model = " --model " + folder_.string();
  const fs::path base = fresh_folder("made");
  parse_json(runs("score --json --ids 1,2,3" + model), "score");
  runs("generate --ids 1,2 --max-tokens 2" + model);
  parse_json(runs("inspect --json" + model), "inspect");
  runs("export --out " + (base / "copy").string() + model);
  runs("retrofit --block-size 2 --out " + (base / "mixed").string() + model);
  runs("import --from " + folder_.string() + " --out " + (base / "imported").string());
  const Result result = run_program("score --ids 1,2,3 --model " + (base / "copy").string());
  EXPECT_EQ(result.err.find("note: "), std::string::npos) << "which has all of it";
}

}  // namespace
}  // namespace attnres::testing::notes_test
