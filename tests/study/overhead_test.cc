// What a study's page says of times and memory, and what it does not say.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "attnres/study/study_page.h"
#include "attnres/support/file.h"
#include "tests/report/fake_run.h"
#include "tests/study/planted_study.h"
#include "tests/text/test_files.h"

namespace attnres::testing::overhead_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A ratio of times as a fact.
constexpr const char* kRatio = "takes [0-9.]+ times [^.]*time per token";

using SpeedOfRun = std::function<double(bool is_block, int seed)>;

// Residual and block at one size with three seeds each, which trained at these speeds.
class CostStudy {
 public:
  CostStudy(const char* name, const SpeedOfRun& speed_of) : folder_(fresh_folder(name)) {
    std::erase_if(study_["runs"].get_ref<Json::array_t&>(),
                  [](const Json& run) { return run["arms"]["width"] != "32"; });
    study_["figures"] = {{{"kind", "overhead"}}};
    fs::create_directories(folder_ / "runs");
    for (Json& run : study_["runs"]) {
      const bool is_block = run["arms"]["mixing"] == "block";
      run["peak_bytes"] = is_block ? 150e6 : 100e6;
      FakeRun{.name = run["name"],
              .mechanism = is_block ? "block_attn_res" : "residual",
              .speed = speed_of(is_block, run["seed"])}
          .write(folder_ / "runs" / run["name"].get<std::string>());
    }
  }

  Json& run(const std::string& name) {
    for (Json& run : study_["runs"]) {
      if (run["name"] == name) return run;
    }
    throw std::out_of_range(name);
  }
  // Its speed doubles while it trains, so that few intervals are near their median.
  void disturb(const std::string& name) {
    const fs::path file = folder_ / "runs" / name / "metrics.jsonl";
    std::istringstream lines(read_file(file));
    std::string disturbed;
    for (std::string line; std::getline(lines, line);) {
      Json metric = parse_json(line, "metrics.jsonl");
      metric["tokens_per_second"] =
          metric["tokens_per_second"].get<double>() * (1 + metric["step"].get<double>() / 200);
      disturbed += metric.dump() + "\n";
    }
    testing::write_text(file, disturbed);
  }
  StudyPage page() const {
    testing::write_text(folder_ / "study.json", study_.dump());
    return write_study_page(folder_);
  }

 private:
  fs::path folder_;
  Json study_ = planted_study(1.25);
};

double block_is_slower(bool is_block, int) {
  return is_block ? 8000 : 10000;
}

std::string text_of(const StudyPage& page) {
  return read_file(page.page);
}

// The cells of the Overhead table's row of an arm, without its name.
std::vector<std::string> row_of(const StudyPage& page, const std::string& arm) {
  std::string text = text_of(page);
  text = text.substr(text.find("<h2>Overhead</h2>"));
  text = text.substr(0, text.find("</table>"));
  const std::regex row("<tr[^>]*><th[^>]*>(?:<bdi>)?" + arm + "(?:</bdi>)?</th>(.*?)</tr>"),
      cell("<td[^>]*>(.*?)</td>");
  std::vector<std::string> cells;
  std::smatch found;
  if (!std::regex_search(text, found, row)) return cells;
  const std::string inner = found[1];
  for (std::sregex_iterator it(inner.begin(), inner.end(), cell), end; it != end; ++it) {
    cells.push_back((*it)[1]);
  }
  return cells;
}

TEST(Overhead, TellsWhatWasMeasuredWell) {
  const StudyPage page = CostStudy("cost-well", block_is_slower).page();
  EXPECT_THAT(page.costs,
              ElementsAre("block takes 1.250 times (95 % interval 1.250 to 1.250) the baseline’s "
                          "time per token. block takes 1.500 times (95 % interval 1.500 to 1.500) "
                          "the baseline’s memory."));
  EXPECT_THAT(text_of(page), HasSubstr("aria-label=\"Time per token over the baseline"));
  EXPECT_EQ(text_of(page).find("do not compare"), std::string::npos);
  const std::vector<std::string> block = row_of(page, "block");
  ASSERT_EQ(block.size(), 7u);
  EXPECT_EQ(block[0], "3");
  EXPECT_THAT(block[1], Not(HasSubstr("≈")));
}

// As the report of the same runs does, with no number that could be taken for a fact.
TEST(Overhead, ComparesNoSpeedsThatWereDisturbed) {
  for (const char* arm : {"block", "residual"}) {
    CostStudy study("cost-disturbed", block_is_slower);
    for (int seed = 1; seed <= 3; ++seed) {
      study.disturb(std::string(arm) + "-32-seed" + std::to_string(seed));
    }
    const StudyPage page = study.page();
    ASSERT_EQ(page.costs.size(), 1u);
    EXPECT_THAT(page.costs[0],
                ContainsRegex("^The speeds of block and the baseline were not measured well enough "
                              "to compare: " +
                              std::string(arm) +
                              "-32-seed1 was disturbed .only [0-7] of 10 intervals within 5 % of "
                              "their median"));
    EXPECT_THAT(page.costs[0], HasSubstr("block takes 1.500 times"));  // the memory
    const std::string text = text_of(page);
    EXPECT_THAT(page.costs[0], Not(ContainsRegex(kRatio)));
    EXPECT_FALSE(std::regex_search(text, std::regex(kRatio)));
    EXPECT_EQ(text.find("aria-label=\"Time per token over the baseline"), std::string::npos);
    const std::vector<std::string> block = row_of(page, "block");
    ASSERT_EQ(block.size(), 7u);
    EXPECT_THAT(block[1], HasSubstr("≈"));
    EXPECT_EQ(block[2], "–");
    EXPECT_EQ(block[3], "–");
    EXPECT_THAT(text, HasSubstr("Against training time these do not compare, since their speeds "
                                "were not measured well: " +
                                std::string(arm) + "-32-seed1, "));
  }
}

// The pair of the disturbed run is left out of all columns.
TEST(Overhead, LeavesADisturbedSeedOut) {
  CostStudy study("cost-one-disturbed", [](bool is_block, int seed) {
    return block_is_slower(is_block, seed) * (seed == 2 ? 5 : 1);
  });
  study.run("block-32-seed2")["peak_bytes"] = 900e6;
  study.disturb("block-32-seed2");
  const StudyPage page = study.page();
  ASSERT_EQ(page.costs.size(), 1u);
  EXPECT_THAT(page.costs[0], HasSubstr("block takes 1.250 times (95 % interval 1.250 to 1.250)"));
  EXPECT_THAT(page.costs[0], HasSubstr("block takes 1.500 times"));
  EXPECT_EQ(row_of(page, "block")[0], "2");
  EXPECT_EQ(row_of(page, "residual")[0], "3");
}

TEST(Overhead, CountsNoRunThatIsUnfinished) {
  CostStudy study("cost-unfinished", block_is_slower);
  for (int seed = 1; seed <= 3; ++seed) {
    study.run("block-32-seed" + std::to_string(seed))["state"] = "unfinished";
  }
  const StudyPage page = study.page();
  EXPECT_THAT(page.costs, IsEmpty());
  EXPECT_FALSE(std::regex_search(text_of(page), std::regex(kRatio)));
  EXPECT_THAT(row_of(page, "block"), IsEmpty());
  EXPECT_EQ(row_of(page, "residual").size(), 7u);
}

// Ten times as fast with the third seed, which the block has not done: it is in neither side.
TEST(Overhead, TimesAndTheirRatioAreOfTheSameRuns) {
  CostStudy study("cost-same-runs", [](bool is_block, int seed) {
    const double speeds[] = {10000, 20000, 100000};
    return speeds[seed - 1] * (is_block ? 0.8 : 1);
  });
  study.run("block-32-seed3")["state"] = "unfinished";
  const std::vector<std::string> block = row_of(study.page(), "block");
  ASSERT_EQ(block.size(), 7u);
  EXPECT_EQ(block[0], "2");
  std::smatch ratio;
  ASSERT_TRUE(std::regex_search(block[2], ratio, std::regex("^([0-9.]+) × ([0-9.]+) µs$")))
      << block[2];
  EXPECT_EQ(ratio[1], "1.250");
  const double baseline = std::stod(ratio[2]);
  EXPECT_NEAR(baseline, std::sqrt(100 * 50.0), 1);  // microseconds
  EXPECT_NEAR(std::stod(block[1]), 1.25 * baseline, 0.02);
}

TEST(Overhead, SaysOfAWideIntervalThatNothingIsKnown) {
  const auto page_of = [](double least, double most) {
    return CostStudy("cost-wide",
                     [=](bool is_block, int seed) {
                       const double times[] = {least, std::sqrt(least * most), most};
                       return 10000 / (is_block ? times[seed - 1] : 1);
                     })
        .page();
  };
  // Logarithms of +-d around a middle: the interval is 4.3027 d / sqrt(3) to either side, so that
  // its ends differ by a factor of 2 at d = 0.1395.
  const StudyPage known = page_of(1.2 * std::exp(-0.139), 1.2 * std::exp(0.139));
  EXPECT_THAT(known.costs[0], HasSubstr("block takes 1.200 times (95 % interval 0.850 to 1.695)"));
  const StudyPage wide = page_of(1.2 * std::exp(-0.14), 1.2 * std::exp(0.14));
  EXPECT_THAT(wide.costs[0],
              HasSubstr("What block takes of the baseline’s time per token is unknown: 3 seeds "
                        "tell it to no better than a factor of 2."));
  EXPECT_FALSE(std::regex_search(text_of(wide), std::regex(kRatio)));
  const std::vector<std::string> block = row_of(wide, "block");
  ASSERT_EQ(block.size(), 7u);
  EXPECT_EQ(block[2], "unknown");
  EXPECT_EQ(block[3], "–");
}

TEST(Overhead, OfOneSeedSaysSo) {
  CostStudy study("cost-one-seed", block_is_slower);
  for (const char* run : {"block-32-seed2", "residual-32-seed3"}) {
    study.run(run)["state"] = "missing";
  }
  EXPECT_THAT(study.page().costs[0],
              HasSubstr("block takes 1.250 times (one seed) the baseline’s time per token."));
}

TEST(Overhead, ComesAfterTheLosses) {
  const StudyPage page = CostStudy("cost-order", block_is_slower).page();
  const std::string text = text_of(page);
  ASSERT_EQ(page.sentences.size(), 1u);
  const size_t losses = text.find("block is better than residual: −"),
               costs = text.find(page.costs[0]);
  ASSERT_NE(losses, std::string::npos);
  ASSERT_NE(costs, std::string::npos);
  EXPECT_LT(losses, costs);
}

}  // namespace
}  // namespace attnres::testing::overhead_test
