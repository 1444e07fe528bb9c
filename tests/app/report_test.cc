#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "attnres/support/terminal.h"
#include "tests/app/program.h"
#include "tests/report/fake_run.h"
#include "tests/study/planted_study.h"

namespace attnres::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ReportCommand, SaysWhatKeepsRunsFromComparing) {
  const std::filesystem::path folder = fresh_folder("report");
  FakeRun base{.name = "base"}, full{.name = "full", .mechanism = "attn_res", .gain = 0.03};
  const auto report = [&](const std::string& options) {
    base.write(folder / "base");
    full.write(folder / "full");
    const auto quoted = [&](const char* name) {
      return fmt::format("'{}'", (folder / name).string());
    };
    return run_program(fmt::format("report {} {} --out {} {}", quoted("base"), quoted("full"),
                                   quoted("page.html"), options));
  };
  const Json alike = parse_json(report("--json").out, "report");
  EXPECT_TRUE(alike.at("incomparable").empty());
  EXPECT_LT(alike.at("runs").at(1).at("loss_difference").get<double>(), -0.02);
  EXPECT_TRUE(alike.at("runs").at(1).at("speed_well_measured").get<bool>());

  full.data_hash = "other";
  const Result result = report("");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("These runs do not compare: different data."));
  const Json apart = parse_json(report("--json").out, "report");
  EXPECT_EQ(apart.at("incomparable"), Json::array({"different data"}));
  EXPECT_THAT(apart.at("verdict").get<std::string>(), HasSubstr("do not compare: different data"));
  EXPECT_TRUE(apart.at("runs").at(1).at("loss_difference").is_null());
}

TEST(ReportCommand, ShowsANoteWithWhatIsToBeReadWithCare) {
  const std::filesystem::path folder = fresh_folder("report_note");
  const auto run = FakeRun{.name = "base"}.write(folder / "base");
  const auto page = folder / "page.html";
  const Result result =
      run_program(fmt::format("report '{}' --out '{}' --json --note 'Few <steps>.' --note Another.",
                              run.string(), page.string()));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Json cautions = parse_json(result.out, "report").at("cautions");
  ASSERT_GE(cautions.size(), 2u);
  EXPECT_EQ(cautions[0], "Few <steps>.");
  EXPECT_THAT(read_file(page),
              HasSubstr("Read with care</h2><ul><li>Few &lt;steps&gt;.</li><li>Another.</li>"));
}

TEST(ReportCommand, WritesMetricsAsATable) {
  const std::filesystem::path folder = fresh_folder("report_csv");
  const auto run = FakeRun{.name = "base"}.write(folder / "base");
  const auto csv = folder / "metrics.csv";
  const Result result = run_program(fmt::format("report '{}' --out '{}' --csv '{}'", run.string(),
                                                (folder / "page.html").string(), csv.string()));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(read_file(csv), HasSubstr("run,step,tokens,seconds,loss,lr,grad_norm,"));
  EXPECT_THAT(read_file(csv), HasSubstr("\n" + run.string() + ",200,"));
}

TEST(ReportCommand, PrintsMetricsAsATable) {
  const std::filesystem::path folder = fresh_folder("report_csv");
  const auto run = FakeRun{.name = "base"}.write(folder / "base");
  const auto report = [&](const std::string& csv) {
    return run_shell(fmt::format("cd '{}' && attnres report '{}' --out page.html --csv {}",
                                 folder.string(), run.string(), csv));
  };
  ASSERT_EQ(report("metrics.csv").exit_code, 0);
  const Result printed = report("-");
  EXPECT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_EQ(printed.out, read_file(folder / "metrics.csv"));
  EXPECT_THAT(printed.err, HasSubstr("report: page.html"));
  EXPECT_FALSE(std::filesystem::exists(folder / "-"));
  const Result both = report("- --json");
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("--csv"));
}

TEST(ReportCommand, SaysWhatSeedsTell) {
  const std::filesystem::path folder = fresh_folder("report_seeds");
  std::string runs;
  for (const char* mechanism : {"residual", "attn_res"}) {
    for (int seed : {1, 2}) {
      const FakeRun run{.name = mechanism,
                        .mechanism = mechanism,
                        .gain = 0.1 * seed + (mechanism == std::string("attn_res") ? 0.03 : 0)};
      const auto path = run.write(folder / fmt::format("{}{}", mechanism, seed));
      Json record = run.record();
      record["recipe"]["train"]["seed"] = seed;
      write_text(path / "run.json", record.dump());
      runs += fmt::format(" '{}'", path.string());
    }
  }
  const std::string command =
      fmt::format("report{} --out '{}'", runs, (folder / "page.html").string());
  const Result narrow = run_shell("export COLUMNS=60; attnres " + command);
  const std::string table = narrow.out.substr(0, narrow.out.find("report: "));
  EXPECT_THAT(table, HasSubstr("arm       mean loss  difference       95 % interval  p-value\n"));
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(characters(line), 60u) << line;
  const Result result = run_shell("export COLUMNS=1000; attnres " + command);
  EXPECT_THAT(result.out, HasSubstr("Over 2 seeds attn_res is better than residual"));
  EXPECT_THAT(result.out, HasSubstr("arm       verdict   seeds  mean loss"));
  EXPECT_THAT(result.out, HasSubstr("attn_res  better        2     "));
  const Json json = parse_json(run_program(command + " --json").out, "report");
  EXPECT_EQ(json.at("difference_to_tell"), 0.005);
  const Json &baseline = json.at("arms").at(0), &arm = json.at("arms").at(1);
  EXPECT_TRUE(baseline.at("baseline").get<bool>());
  EXPECT_TRUE(baseline.at("interval").is_null());
  EXPECT_EQ(arm.at("pairs"), 2);
  EXPECT_EQ(arm.at("verdict"), "better");
  EXPECT_NEAR(arm.at("mean_difference").get<double>(), -0.03, 1e-9);
  EXPECT_LT(arm.at("interval").at(1).get<double>(), 0);
  EXPECT_EQ(arm.at("seeds_to_tell"), 2);
}

TEST(ReportCommand, MakesTheStudysPageAnew) {
  const std::filesystem::path folder = fresh_folder("report_study");
  Json study = planted_study(1.25);
  write_text(folder / "study.json", study.dump());
  const std::string quoted = fmt::format("'{}'", folder.string());
  const Result result = run_shell("export COLUMNS=1000; attnres report " + quoted);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("30 of 30 runs done.\n"));
  EXPECT_THAT(result.out, HasSubstr("block · 32 is better than residual · 32: −"));
  EXPECT_THAT(result.out, HasSubstr("Intervals are of each arm alone; p is corrected (Holm)"));
  EXPECT_THAT(result.out, HasSubstr((folder / "report.html").string()));
  const Json json = parse_json(run_program("report --json " + quoted).out, "report");
  EXPECT_EQ(json.at("sentences").size(), 5u);
  ASSERT_FALSE(json.at("findings").empty());
  const size_t finding = result.out.find(json.at("findings").at(0).get<std::string>());
  EXPECT_LT(finding, result.out.find(json.at("sentences").at(0).get<std::string>()));
  EXPECT_TRUE(json.at("arms").at(0).at("baseline").get<bool>());
  EXPECT_EQ(json.at("arms").at(1).at("verdict"), "better");

  // Of what arms cost it speaks last.
  study["figures"].push_back({{"kind", "overhead"}});
  for (Json& run : study["runs"]) run["peak_bytes"] = 1e6 * run["seed"].get<double>();
  write_text(folder / "study.json", study.dump());
  const Json with_costs = parse_json(run_program("report --json " + quoted).out, "report");
  ASSERT_EQ(with_costs.at("costs").size(), 5u);
  const auto cost = with_costs.at("costs").at(0).get<std::string>();
  EXPECT_THAT(cost, HasSubstr("block-32-seed1 has no log of its speed"));
  const std::string told = run_shell("export COLUMNS=1000; attnres report " + quoted).out;
  ASSERT_THAT(told, HasSubstr(cost));
  EXPECT_LT(told.find(with_costs.at("sentences").at(4).get<std::string>()), told.find(cost));

  // Many arms have a table.
  for (const Json& run : Json(study.at("runs"))) {
    if (run.at("arms").at("mixing") != "block") continue;
    Json another = run;
    another["name"] = "another-" + run.at("name").get<std::string>();
    another["arms"]["mixing"] = "another";
    study["runs"].push_back(another);
  }
  write_text(folder / "study.json", study.dump());
  const Result many = run_shell("export COLUMNS=80; attnres report " + quoted);
  EXPECT_THAT(many.out, HasSubstr("\nanother · 64    better  "));
  EXPECT_THAT(many.out, Not(HasSubstr("another · 64 is better")));

  FakeRun{.name = "run"}.write(folder / "run");
  const Result mixed =
      run_program(fmt::format("report {} '{}'", quoted, (folder / "run").string()));
  EXPECT_EQ(mixed.exit_code, 2);
  EXPECT_THAT(mixed.err, HasSubstr("the folder of a study has a page of its own"));
}

}  // namespace
}  // namespace attnres::testing
