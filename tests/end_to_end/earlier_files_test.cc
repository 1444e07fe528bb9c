// What an earlier version wrote besides runs (tests/fixtures/version_0_1, first_config) is read as
// it was meant.
#include <gmock/gmock.h>

#include "attnres/formats/safetensors.h"
#include "tests/end_to_end/runs.h"

namespace attnres::testing::earlier_files_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kFixtures = fs::path(ATTNRES_SOURCE_DIR) / "tests/fixtures";
const fs::path kFiles = kFixtures / "version_0_1";
const fs::path kText = kFixtures / "interrupted_run/text.txt";

// What a command prints with --json.
Json printed(const std::string& command) {
  const Result result = run_program(command + " --json");
  EXPECT_EQ(result.exit_code, 0) << command << "\n" << result.err;
  return result.exit_code == 0 ? Json::parse(result.out) : Json();
}

double loss_of(const std::string& arguments, const fs::path& model) {
  return printed("eval --threads 1 --model " + quoted(model) + " " + arguments).at("loss");
}

// The model of tokens and adapter, where reading it may leave a lock.
fs::path small_model() {
  const fs::path model = fresh_folder("model") / "best";
  fs::copy(kFixtures / "interrupted_run/run/checkpoints/best", model);
  return model;
}

// The first layout, before most settings were there, is the model that it was.
TEST(EarlierModel, HasItsSettings) {
  const fs::path shipped = fs::path(ATTNRES_SOURCE_DIR) / "models/tiny-shakespeare";
  const fs::path model = fresh_folder("earlier") / "model";
  fs::copy(shipped, model);
  Json config = read_json(kFixtures / "first_config/config.json");
  attnres::write_text(model / "config.json", config.dump());
  const std::string data = "--max-tokens 2000 --data " + quoted(kText);
  const double loss = loss_of(data, shipped);
  EXPECT_EQ(loss_of(data, model), loss);
  // Negative control: another setting.
  config["attnres"]["depth_mixing"]["block_size"] = 4;
  attnres::write_text(model / "config.json", config.dump());
  EXPECT_NE(loss_of(data, model), loss);
}

TEST(EarlierTokens, AreTheTextThatTheyWereMadeOf) {
  const fs::path tokens = kFiles / "tokens", model = small_model();
  EXPECT_THAT(run_program("tokenize --verify " + quoted(tokens)).out, HasSubstr("1.1K tokens"));
  // The beginning and the end of the text.
  const std::string text = read_file(kText);
  const fs::path folder = fresh_folder("documents");
  attnres::write_text(folder / "a.txt", text.substr(0, 700));
  attnres::write_text(folder / "b.txt", text.substr(text.size() - 400));
  const double loss = loss_of("--data " + quoted(tokens), model);
  EXPECT_EQ(loss, loss_of("--data " + quoted(folder), model));
  // Negative control: another text.
  attnres::write_text(folder / "b.txt", text.substr(text.size() - 401, 400));
  EXPECT_NE(loss, loss_of("--data " + quoted(folder), model));
}

// The losses are those of the version that wrote it.
TEST(EarlierAdapter, IsAddedToItsModel) {
  const fs::path model = small_model();
  const std::string data = "--data " + quoted(kText);
  EXPECT_NEAR(loss_of(data + " --adapter " + quoted(kFiles / "adapter"), model), 3.416720, 1e-5);
  EXPECT_NEAR(loss_of(data, model), 3.427424, 1e-5);
}

// What was measured stands in study.json and in the runs' folders.
TEST(EarlierStudy, IsReported) {
  const fs::path study = fresh_folder("earlier") / "study";
  fs::copy(kFiles / "study", study, fs::copy_options::recursive);
  const auto loss_by_arm = [&] {
    std::map<std::string, double> losses;
    const Json report = printed("report " + quoted(study));
    for (const Json& arm : report.at("arms")) {
      EXPECT_EQ(arm.at("seeds"), 2);
      losses[arm.at("name")] = arm.at("mean_loss");
    }
    return losses;
  };
  EXPECT_THAT(
      loss_by_arm(),
      ::testing::ElementsAre(::testing::Pair("block", ::testing::DoubleNear(3.334197, 1e-6)),
                             ::testing::Pair("residual", ::testing::DoubleNear(3.331422, 1e-6))));
  EXPECT_TRUE(fs::exists(study / "report.html"));
}

// Made by the same numbers, which nothing that was checked by them may come to depart from.
TEST(EarlierVectors, AreStillRight) {
  const fs::path vectors = kFiles / "vectors.safetensors";
  EXPECT_EQ(run_program("diagnose " + quoted(vectors)).exit_code, 0);
  // Negative control: one number.
  const SafetensorsFile file(vectors);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const std::string& name : file.names()) tensors.emplace_back(name, file.read(name));
  const auto mixed = std::find_if(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return tensor.first == "depth_attention/mixed.2";
  });
  ASSERT_NE(mixed, tensors.end());
  mixed->second.view(-1)[3] += 1e-6;
  const fs::path wrong = fresh_folder("vectors") / "wrong.safetensors";
  write_safetensors(wrong, tensors);
  EXPECT_EQ(run_program("diagnose " + quoted(wrong)).exit_code, 1);
}

}  // namespace
}  // namespace attnres::testing::earlier_files_test
