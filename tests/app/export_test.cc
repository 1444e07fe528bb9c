// The export command, and the trained model that comes with the program.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/support/file.h"
#include "attnres/support/json.h"
#include "tests/app/program.h"

namespace attnres::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kModel = std::string(ATTNRES_SOURCE_DIR) + "/models/tiny-shakespeare";

class Export : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(out_); }
  const fs::path out_ = fs::path(::testing::TempDir()) / "exported";
};

// A play's ordinary words, and the same letters in an order that no play has.
double loss_of(const fs::path& model, const std::string& text) {
  const fs::path file = fs::path(::testing::TempDir()) / "scored.txt";
  write_file(file, text);
  const Result result =
      run_program(fmt::format("eval --model {} --data {} --json", model.string(), file.string()));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return parse_json(result.out, "eval").at("loss").get<double>();
}

const std::string kSpeech =
    "KING HENRY:\nMy lord, the people of the city come\nTo speak with you; and they will not be "
    "gone\nTill they have heard what you will say to them.\n";

TEST_F(Export, KeepsTheModelInFewerBytes) {
  for (const char* type : {"f32", "bf16", "f16"}) {
    fs::remove_all(out_);
    const Result result = run_program(
        fmt::format("export --model {} --type {} --out {}", kModel, type, out_.string()));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NEAR(loss_of(out_, kSpeech), loss_of(kModel, kSpeech), 1e-4) << type;
  }
  EXPECT_LT(fs::file_size(out_ / "model.safetensors"), 4'000'000u);
}

TEST_F(Export, ReplacesNothing) {
  make_folder(out_);
  write_file(out_ / "precious", "text");
  const Result result =
      run_program(fmt::format("export --model {} --out {}", kModel, out_.string()));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("is there already"));
  EXPECT_EQ(read_file(out_ / "precious"), "text");
}

TEST(ShippedModel, KnowsShakespeare) {
  std::string backwards(kSpeech.rbegin(), kSpeech.rend());
  EXPECT_LT(loss_of(kModel, kSpeech), 2.2);
  EXPECT_GT(loss_of(kModel, backwards), 3.5);
}

TEST(ShippedModel, ShowsItsDepthWeights) {
  const fs::path file = fs::path(::testing::TempDir()) / "speech.txt";
  write_file(file, kSpeech);
  const Result result =
      run_program(fmt::format("inspect --model {} --data {} --json", kModel, file.string()));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json sites = parse_json(result.out, "inspect").at("sites");
  ASSERT_EQ(sites.size(), 17u);
  double largest = 0, smallest = 1;
  for (const Json& site : sites) {
    double sum = 0;
    for (const Json& weight : site.at("weights")) {
      sum += weight.get<double>();
      largest = std::max(largest, weight.get<double>() * (site.at("weights").size() > 1));
      smallest = std::min(smallest, weight.get<double>());
    }
    EXPECT_NEAR(sum, 1, 1e-5);
  }
  EXPECT_GT(largest / smallest, 3) << "it was trained, so its weights are far from uniform";
}

}  // namespace
}  // namespace attnres::testing
