#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "attnres/depth/mechanism.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/text/bytes.h"
#include "tests/app/program.h"
#include "tests/model/small_models.h"

namespace attnres::testing::mechanisms_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Their costs are tested in tests/depth/mixing_cost_test.cc; these are the numbers of Table 1 of
// arXiv 2603.15031 and of a residual model of four sublayers.
TEST(Mechanisms, AreAllListed) {
  const Result table = run_program("mechanisms --layers 2 --width 32");
  ASSERT_EQ(table.exit_code, 0) << table.err;
  const Json list = Json::parse(run_program("mechanisms --layers 2 --width 32 --json").out);
  ASSERT_EQ(list.size(), mechanisms().size());
  for (size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(list[i]["name"], mechanisms()[i].text.name);
    EXPECT_THAT(table.out, HasSubstr(fmt::format("\n{} ", mechanisms()[i].text.name)));
    for (const char* text : {"formula", "start", "source"}) EXPECT_NE(list[i][text], "");
  }
  const auto entry = [&](const char* name) {
    return *std::find_if(list.begin(), list.end(),
                         [&](const Json& e) { return e["name"] == name; });
  };
  const Json residual = entry("residual");
  EXPECT_EQ(residual["traffic"]["fused"], 3);
  // The first site reads and writes; each later one reads two and writes two; with gains of 1/64.
  EXPECT_DOUBLE_EQ(residual["traffic"]["counted"].get<double>(), (2 + 4 * 4 + 5 / 64.0) / 4);
  EXPECT_EQ(residual["parameters"], 0);
  EXPECT_EQ(residual["sealed"], 0);
  EXPECT_EQ(residual["open"], 1);
  EXPECT_EQ(entry("mhc")["traffic"]["fused"], 34);  // of 4 streams
  EXPECT_EQ(entry("mhc")["open"], 4);
}

TEST(Mechanisms, PageIsWhatTheProgramPrints) {
  const Result result = run_program("mechanisms --markdown");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, read_file(std::string(ATTNRES_SOURCE_DIR) + "/docs/mechanisms.md"))
      << "write it again: attnres mechanisms --markdown > docs/mechanisms.md";
}

TEST(Mechanisms, AreCountedRightInPages) {
  const auto flowing = [](const std::string& page) {
    const std::string text = read_file(std::string(ATTNRES_SOURCE_DIR) + "/" + page);
    return std::regex_replace(text, std::regex("\\s+"), " ");
  };
  const size_t count = mechanisms().size();
  EXPECT_THAT(flowing("README.md"), HasSubstr(fmt::format("{} ways to combine layers", count)));
  EXPECT_THAT(flowing("docs/using.md"), HasSubstr(fmt::format("one of {} mechanisms", count)));
}

TEST(Mechanisms, ShowsOneWithItsSettings) {
  const Result result = run_program("mechanisms block_attn_res --set block_size=3 --layers 6");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part :
       {"block_size = 3", "arXiv 2603.15031", "(N/S + 5)d", "a cut in the middle"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
}

TEST(Mechanisms, RefusesWhatItCannotShow) {
  const auto refused = [](const std::string& arguments, const std::string& part) {
    const Result result = run_program("mechanisms " + arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_THAT(result.err, StartsWith("attnres: error: "));
    EXPECT_THAT(result.err, HasSubstr(part));
  };
  refused("blok_attn_res", "mechanisms blok_attn_res: there is none of that name");
  refused("blockattnres", "did you mean block_attn_res?");
  refused("magic", "attnres mechanisms lists all");
  refused("residual --set block_size=2", "takes no settings");
  refused("mhc --set streems=2", "streams");
  refused("--set block_size=2", "name it");
  refused("attn_res --width 30", "not divisible by 4");
}

class MixingMatrices : public ::testing::Test {
 protected:
  MixingMatrices() {
    write_text(data_, std::string(300, 'a') + "the text of a matrix");
    save_model(small_model(block_attn_res(2), {.vocab_size = 256, .precision = at::kFloat}),
               folder_,
               /*context=*/64, /*document_ids=*/0);
    ByteTokenizer().save(folder_);
  }
  Result inspect(const std::string& arguments) const {
    return run_program("inspect --threads 1 --model " + folder_.string() + " " + arguments);
  }

  const fs::path folder_ = fresh_folder("model"), data_ = fresh_folder("data") / "text.txt";
};

TEST_F(MixingMatrices, HoldTheDepthWeightsOfBlocks) {
  const Result result = inspect("--json --matrix --max-tokens 65 --data " + data_.string());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  const Json& mean = json["mixing_matrices"][0]["mean"];
  ASSERT_EQ(mean.size(), 7u);
  for (int site = 0; site <= 6; ++site) {
    const Json& weights = json["sites"][site]["weights"];
    for (int i = 0; i <= 6; ++i) {
      if (i > site) {
        EXPECT_TRUE(mean[site][i].is_null());
        continue;
      }
      const int source = i == 0 ? 0 : 1 + (i - 1) / 2;
      EXPECT_NEAR(mean[site][i].get<double>(), weights[source].get<double>(), 1e-5)
          << "site " << site << ", source " << i;
    }
  }
  EXPECT_GE(json["mixing_matrices"][0]["semiseparable_rank"].get<int>(), 3);
}

TEST_F(MixingMatrices, ArePrintedAndDrawn) {
  const fs::path picture = fresh_folder("picture") / "matrix.svg";
  const Result result =
      inspect("--matrix --data " + data_.string() + " --draw-matrix " + picture.string());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"depth mixing matrix", "semiseparable rank", "feed-forward 3"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
  EXPECT_THAT(read_file(picture), StartsWith("<svg xmlns"));
  EXPECT_THAT(read_file(picture), HasSubstr(">Depth mixing matrix of "));
  const Result without = inspect("--matrix");
  EXPECT_EQ(without.exit_code, 2);
  EXPECT_THAT(without.err, HasSubstr("--data"));
}

}  // namespace
}  // namespace attnres::testing::mechanisms_test
