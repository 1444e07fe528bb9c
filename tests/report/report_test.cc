#include "attnres/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>

#include "attnres/plots/page_parts.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/report/fake_run.h"

namespace attnres::report_test {
namespace {

namespace fs = std::filesystem;
using attnres::testing::FakeRun;
using attnres::testing::write_text;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ReportTest : public ::testing::Test {
 protected:
  ReportTest()
      : folder_(fs::path(::testing::TempDir()) / "attnres_report" /
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  std::string page(const std::vector<fs::path>& runs) {
    summary_ = write_report(runs, {.out = folder_ / "report.html"});
    return read_file(summary_.page);
  }

  // Three runs that together fill every part of the page.
  std::vector<fs::path> three() const {
    return {base_.write(folder_ / "base"), full_.write(folder_ / "full"),
            block_.write(folder_ / "block")};
  }

  const FakeRun base_{.name = "base"};
  const FakeRun full_{.name = "full", .mechanism = "attn_res", .gain = 0.03, .speed = 8700};
  const FakeRun block_{
      .name = "block", .mechanism = "block_attn_res", .gain = 0.027, .speed = 9500};
  const fs::path folder_;
  ReportSummary summary_;
};

// Whether the page has a part; unlike HasSubstr, a failure doesn't print the page.
bool has(const std::string& page, const std::string& part) {
  return page.find(part) != std::string::npos;
}

// The plot whose accessible name is `alt`.
std::string plot(const std::string& page, const std::string& alt) {
  const size_t from = page.find("aria-label=\"" + alt + "\"");
  if (from == std::string::npos) return "";
  return page.substr(from, page.find("</svg>", from) - from);
}

const std::vector<std::string> kPlots = {
    "Loss against tokens",
    "Loss against training time",
    "Validation loss minus that of the residual run, against tokens",
    "Depth weights of full, Before attention",
    "Depth weights of full, Before feed-forward",
    "Depth weights of full, At the output",
    "Depth weights of block, Before attention",
    "Depth weights of block, Before feed-forward",
    "Depth weights of block, At the output",
    "Output magnitude",
    "Gradient magnitude",
    "Depth entropy against step"};

// The plots of `b` that are not as in `a`.
std::vector<std::string> changed(const std::string& a, const std::string& b) {
  std::vector<std::string> out;
  for (const std::string& alt : kPlots) {
    if (plot(a, alt) != plot(b, alt)) out.push_back(alt);
  }
  return out;
}

TEST_F(ReportTest, HasEveryPartInOrder) {
  const std::string text = page(three());
  size_t at = 0;
  for (const char* part :
       {"<h1>3 runs compared", "full has the lowest final validation loss", ">Summary<", ">Loss<",
        ">Depth weights<", ">Magnitudes over depth<", ">Depth entropy<", ">Samples<",
        ">Configuration<", "model.depth_mixing.type", ">Recipe of", ">Data, build, machine<",
        "5d41402abc4b2a76"}) {
    const size_t found = text.find(part, at);
    ASSERT_NE(found, std::string::npos) << part;
    at = found;
  }
  for (const std::string& alt : kPlots) EXPECT_THAT(plot(text, alt), Not(IsEmpty())) << alt;
  EXPECT_TRUE(has(text, "<b>The king</b> spoke to block at step 200."));
  EXPECT_FALSE(has(text, "at step 100.")) << "samples are the last step's";
  EXPECT_TRUE(has(text, "Not shown: base (no depth weights in its probes)."));
  EXPECT_THAT(summary_.notes, IsEmpty());
  EXPECT_EQ(summary_.comparison.best, 1);
}

TEST_F(ReportTest, NeedsNothingElse) {
  const std::string text = page(three());
  for (const char* reference : {"http:", "https:", "src=", "<script", "<link", "@import", "<img"}) {
    EXPECT_FALSE(has(text, reference));
  }
  const std::regex target("(href=|url\\()['\"]?([^#'\"])");
  EXPECT_FALSE(std::regex_search(text, target));
}

TEST_F(ReportTest, IdsAreUnique) {
  const std::string text = page(three());
  const std::regex id(" id=['\"]([^'\"]+)['\"]");
  std::vector<std::string> ids;
  for (std::sregex_iterator it(text.begin(), text.end(), id), end; it != end; ++it) {
    ids.push_back((*it)[1]);
  }
  std::sort(ids.begin(), ids.end());
  EXPECT_GT(ids.size(), 50);
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
}

TEST_F(ReportTest, EqualRunsGiveAnEqualPage) {
  EXPECT_EQ(page(three()), page(three()));
}

// What each plot draws decides it: a change in one kind of data changes its plots and no other.
TEST_F(ReportTest, EachPlotShowsItsOwnData) {
  const std::vector<fs::path> runs = three();
  const std::string before = page(runs);
  const auto edit = [&](const char* file, const std::string& pattern, const std::string& with) {
    const fs::path path = runs[1] / file;
    const std::string text = read_file(path);
    const std::string edited = std::regex_replace(text, std::regex(pattern), with,
                                                  std::regex_constants::format_first_only);
    EXPECT_NE(text, edited) << pattern;
    write_text(path, edited);
    const std::string after = page(runs);
    write_text(path, text);
    return changed(before, after);
  };
  using ::testing::UnorderedElementsAre;
  EXPECT_THAT(edit("metrics.jsonl", "(\"step\":180,.*\"val_loss\":)[0-9.]+", "$012.2"),
              UnorderedElementsAre(kPlots[0], kPlots[1], kPlots[2]));
  EXPECT_THAT(edit("metrics.jsonl", "(\"step\":150,.*\"loss\":)[0-9.]+", "$012.2"),
              UnorderedElementsAre(kPlots[0], kPlots[1]));
  EXPECT_THAT(edit("metrics.jsonl", "(\"step\":180,.*\"seconds\":)[0-9.]+", "$0184.5"),
              UnorderedElementsAre(kPlots[1]));
  const std::string weights =
      "(\"step\":200,\"site\":%,\"name\":\"depth_weights\",\"value\":.)[0-9.]+";
  const auto at_site = [&](const char* site) {
    return std::regex_replace(weights, std::regex("%"), site);
  };
  EXPECT_THAT(edit("probes.jsonl", at_site("4"), "$010.3"), UnorderedElementsAre(kPlots[3]));
  EXPECT_THAT(edit("probes.jsonl", at_site("5"), "$010.3"), UnorderedElementsAre(kPlots[4]));
  EXPECT_THAT(edit("probes.jsonl", at_site("8"), "$010.3"), UnorderedElementsAre(kPlots[5]));
  const std::string value = "(\"step\":200,\"site\":3,\"name\":\"%\",\"value\":)[0-9.e-]+";
  const auto of_probe = [&](const char* name) {
    return std::regex_replace(value, std::regex("%"), name);
  };
  EXPECT_THAT(edit("probes.jsonl", of_probe("state_rms"), "$011.23"),
              UnorderedElementsAre(kPlots[9]));
  EXPECT_THAT(edit("probes.jsonl", of_probe("gradient_rms"), "$013.3e-05"),
              UnorderedElementsAre(kPlots[10]));
  EXPECT_THAT(edit("probes.jsonl", of_probe("depth_entropy"), "$010.9"),
              UnorderedElementsAre(kPlots[11]));
  EXPECT_THAT(edit("probes.jsonl", of_probe("output_rms"), "$010.9"), IsEmpty());
}

TEST_F(ReportTest, DrawsTheLoadOfExpertsWhereThereAreSome) {
  const std::vector<fs::path> runs = three();
  const char* const alt = "Load of experts, full";
  EXPECT_THAT(plot(page(runs), alt), IsEmpty());
  EXPECT_FALSE(has(page(runs), ">Load of experts<"));
  const auto with_loads = [&](const char* second) {
    std::ofstream(runs[1] / "probes.jsonl", std::ios::app)
        << R"({"step": 200, "site": 3, "name": "expert_load", "value": [0.5, 1.0, 0.5]})"
        << "\n"
        << R"({"step": 200, "site": 5, "name": "expert_load", "value": )" << second << "}\n";
    return page(runs);
  };
  const std::string even = with_loads("[0.7, 0.7, 0.6]");
  EXPECT_TRUE(has(even, ">Load of experts<"));
  EXPECT_THAT(plot(even, alt), Not(IsEmpty()));
  const std::string uneven = with_loads("[2.0, 0.0, 0.0]");
  EXPECT_NE(plot(uneven, alt), plot(even, alt));
  EXPECT_THAT(plot(uneven, "Load of experts, base"), IsEmpty());
}

// What stands in the verdict stands with its values under "What differs".
// The second of two steps of two ranks is drawn, with what crosses into each stage.
TEST_F(ReportTest, DrawsTheScheduleOfProcesses) {
  const fs::path run = block_.write(folder_ / "block");
  EXPECT_FALSE(has(page({run}), "Schedule of processes"));
  Json events = Json::array();
  for (int step = 0; step < 2; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      const double begin = 10000 * step + 1000 * rank;
      const auto add = [&](const char* kind, const std::string& name, double from, double to) {
        events.push_back({{"ph", "X"},
                          {"cat", kind},
                          {"name", name},
                          {"pid", rank},
                          {"ts", begin + from},
                          {"dur", to - from}});
      };
      const std::string way = fmt::format("of micro-batch 2 through stage {}", rank);
      add("forward", "forward " + way, 0, 1500 + 500 * step);
      add("wait", "for gradients", 2000, 3000);
      add("backward", "backward " + way, 3000, 6000);
      for (const char* phase : {"b", "e"}) {
        events.push_back({{"ph", phase},
                          {"cat", "sum"},
                          {"pid", rank},
                          {"id", step},
                          {"ts", begin + (*phase == 'b' ? 5000 : 6500)}});
      }
      add("update", "parameters", 7000, 8000);
    }
  }
  const Json stages = {{{"rank", 0},
                        {"first", 0},
                        {"last", 4},
                        {"holds", Json::array()},
                        {"receives", Json::array()}},
                       {{"rank", 1},
                        {"first", 4},
                        {"last", 9},
                        {"holds", Json::array()},
                        {"receives", {"embedding", "block 1", "block 2", "partial sum"}}}};
  const std::string trace = Json{{"stages", stages}, {"traceEvents", events}}.dump();
  write_text(run / "trace.json", trace);
  const std::string drawn = page({run});
  EXPECT_TRUE(has(drawn, "Schedule of processes"));
  for (const char* part :
       {"forward of micro-batch 2 through stage 1, 2.00 ms", ">3a</text>", ">3A</text>",
        "stage a, sites 0 to 3</text>",
        "stage a, sites 4 to 8: holds none, receives b0 to b2, partial sum</text>",
        "<title>sum of gradients</title>", "2 of 2 ranks, 9.0 ms"}) {
    EXPECT_TRUE(has(drawn, part)) << part;
  }
  EXPECT_FALSE(has(drawn, "1.50 ms"));
  write_text(run / "trace.json", trace.substr(0, trace.size() / 2));
  EXPECT_FALSE(has(page({run}), "Schedule of processes"));
  EXPECT_THAT(summary_.notes, Contains(HasSubstr("trace.json cannot be read")));
  // Numbers that are none of a rank, stage or block.
  std::string other = trace;
  for (const auto& [from, to] : {std::pair("\"rank\":1", "\"rank\":2147483647"),
                                 {"\"last\":4", "\"last\":-9e99"},
                                 {"block 1", "block 99999999999999999999"},
                                 {"\"id\":0", "\"id\":\"a\""}}) {
    for (size_t at = 0; (at = other.find(from, at)) != std::string::npos; ++at) {
      other.replace(at, std::string(from).size(), to);
    }
  }
  write_text(run / "trace.json", other);
  EXPECT_TRUE(has(page({run}), "b99999999999999999999"));
  write_text(run / "trace.json", R"({"stages":7})");
  EXPECT_FALSE(has(page({run}), "Schedule of processes"));
}

TEST_F(ReportTest, WhatDiffersListsDataOriginAndTokens) {
  FakeRun other = full_;
  other.data_hash = "ffff";
  other.steps = 100;
  const fs::path base = base_.write(folder_ / "base"), full = other.write(folder_ / "full");
  Json record = other.record();
  record["from"] = {{"name", "teacher"}, {"step", 5}};
  write_text(full / "run.json", record.dump());
  const std::string text = page({base, full});
  for (const char* reason : {"different data", "full began with the weights of teacher (step 5)",
                             "trained on different amounts, 413.7K to 823.3K tokens"}) {
    EXPECT_THAT(summary_.comparison.verdict, HasSubstr(reason));
    EXPECT_TRUE(has(text, reason)) << reason;
  }
  const size_t begin = text.find(">What differs<");
  ASSERT_NE(begin, std::string::npos);
  const std::string table = text.substr(begin, text.find("</table>", begin) - begin);
  const auto row = [&](const std::string& key, const std::string& a, const std::string& b) {
    return has(table, "<code>" + key + "</code></th><td>" + a + "</td><td>" + b + "</td>");
  };
  EXPECT_TRUE(row("data.hash", "5d41402abc4b2a76", "ffff"));
  EXPECT_TRUE(row("from.name", "–", "teacher"));
  EXPECT_TRUE(row("tokens trained on", "823296", "413696"));
  EXPECT_TRUE(row("train.steps", "201", "101"));
  EXPECT_FALSE(has(table, "data.bytes")) << "it is the same";
  EXPECT_FALSE(has(text, "against residual")) << "they do not compare";
}

// A narrow screen stacks the cells of the summary, each under the name of its column.
TEST_F(ReportTest, CellsNameTheirColumns) {
  const std::string text = page(three());
  EXPECT_TRUE(has(text, "<td data-name=\"final validation loss\">1.8381</td>"));
  const std::regex cell("<td(?: class=\"words\")? data-name=\"([^\"]+)\"");
  for (std::sregex_iterator it(text.begin(), text.end(), cell), end; it != end; ++it) {
    EXPECT_TRUE(has(text, ">" + (*it)[1].str() + "</th>"));
  }
}

TEST_F(ReportTest, WordsStandLeftWhereThereAreNone) {
  const std::string table =
      numbers_table("arm", {row_heading("a"), row_heading("b")},
                    {{"query", {"learned", kNoValue}, true}, {"size", {"4", kNoValue}}});
  EXPECT_TRUE(has(table, "<td class=\"none words\" data-name=\"query\">"));
  EXPECT_TRUE(has(table, "<td class=\"none\" data-name=\"size\">"));
}

TEST_F(ReportTest, OneProbeIsNoCurve) {
  FakeRun run = full_;
  run.steps = 15;
  const std::string text = page({run.write(folder_ / "short")});
  EXPECT_TRUE(has(text, "Depth entropies are there of one step; a curve takes two."));
  EXPECT_EQ(plot(text, "Depth entropy against step"), "");
}

// Seeds make the page say what they tell; single runs have nothing to say of it.
TEST_F(ReportTest, ArmsWithSeedsHaveATable) {
  EXPECT_FALSE(has(page(three()), ">Arms<"));
  std::vector<fs::path> runs;
  for (int64_t seed : {1, 2, 3}) {
    for (FakeRun run : {base_, full_}) {
      run.gain += 0.002 * double(seed % 3) * (run.has_depth_weights() ? 1.1 : 1);
      Json record = run.record();
      record["recipe"]["train"]["seed"] = seed;
      runs.push_back(run.write(folder_ / (run.name + std::to_string(seed))));
      write_text(runs.back() / "run.json", record.dump());
    }
  }
  const std::string text = page(runs);
  const size_t begin = text.find(">Arms<");
  ASSERT_NE(begin, std::string::npos);
  const std::string table = text.substr(begin, text.find("</section>", begin) - begin);
  for (const char* part :
       {"<bdi>residual</bdi>", "<bdi>attn_res</bdi>",
        "<td class=\"words\" data-name=\"verdict\">baseline</td>",
        "<td class=\"words\" data-name=\"verdict\">better</td>", "<td data-name=\"seeds\">3</td>",
        "<td data-name=\"difference\">−0.0302</td>",
        "<td data-name=\"95 % interval\">−0.0307 to −0.0297</td>",
        "<td data-name=\"p-value\">&lt; 0.001</td>", "<td data-name=\"seeds for 0.005\">2</td>",
        "Difference: minus residual"}) {
    EXPECT_TRUE(has(table, part)) << part;
  }
}

TEST_F(ReportTest, ADisturbedSpeedIsMarked) {
  const std::vector<fs::path> runs = three();
  const std::string caption =
      "Against training time these do not compare, since their speeds were "
      "not measured well: ";
  EXPECT_FALSE(has(page(runs), "<td data-name=\"tokens/s\">≈"));
  EXPECT_FALSE(has(page(runs), caption));
  const std::string metrics = read_file(runs[1] / "metrics.jsonl");
  write_text(runs[1] / "metrics.jsonl",
             std::regex_replace(metrics, std::regex("(\"step\":1[5-9].*_per_second\":).*?([,}])"),
                                "$01100$2"));
  EXPECT_TRUE(has(page(runs), "<td data-name=\"tokens/s\">≈"));
  EXPECT_TRUE(has(page(runs), caption + "full.</p>"));
  EXPECT_THAT(summary_.comparison.cautions, Contains(HasSubstr("full was disturbed")));
}

TEST_F(ReportTest, HostileTextIsHarmless) {
  const std::string name = "<script>alert('x')</script>\"`touch trap`$(touch trap)";
  FakeRun hostile = full_;
  hostile.name = name;
  hostile.data_hash = "<img src=http://evil>";
  hostile.mechanism = "<i>odd</i>";
  const fs::path odd = folder_ / "a<b>'c\"&d";
  const std::string text = page({hostile.write(odd), base_.write(folder_ / "base")});
  EXPECT_FALSE(has(text, "<script"));
  EXPECT_FALSE(has(text, "<img"));
  EXPECT_FALSE(has(text, "<i>"));
  EXPECT_FALSE(has(text, "a<b>"));
  EXPECT_TRUE(has(text, "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"));
  EXPECT_TRUE(has(text, "a&lt;b&gt;&#39;c&quot;&amp;d"));
  EXPECT_FALSE(fs::exists("trap"));
  EXPECT_THAT(summary_.comparison.verdict, HasSubstr(name)) << "the summary is plain text";
}

TEST_F(ReportTest, SaysWhichRunsDiverged) {
  const std::vector<fs::path> runs = three();
  EXPECT_FALSE(has(page(runs), "diverged"));
  Json record = full_.record();
  record["diverged"] = {{"step", 1234}, {"error", "its loss is nan"}};
  write_text(runs[1] / "run.json", record.dump());
  const std::string text = page(runs);
  EXPECT_TRUE(has(text, "<td data-name=\"diverged at step\">1,234</td>"));
  EXPECT_TRUE(has(text, "full: diverged at step 1234"));
  EXPECT_THAT(summary_.notes, Contains(std::string("full: diverged at step 1234")));
  EXPECT_EQ(summary_.comparison.runs[1].diverged_at, 1234);
  EXPECT_FALSE(summary_.comparison.runs[0].diverged_at);
}

TEST_F(ReportTest, MissingPartsAreNamed) {
  const std::vector<fs::path> runs = three();
  for (const char* file : {"metrics.jsonl", "probes.jsonl", "samples.jsonl"}) {
    for (const fs::path& run : runs) fs::remove(run / file);
    const std::string text = page(runs);
    EXPECT_TRUE(has(text, std::string("full: no ") + file));
    EXPECT_THAT(summary_.notes, Contains(std::string("full: no ") + file));
  }
  const std::string text = page(runs);
  EXPECT_TRUE(has(text, "No run has measured a validation loss yet."));
  for (const char* sentence :
       {"No run has logged a loss.", "No run has depth weights in its probes.",
        "No run has magnitudes in its probes.", "No run has depth entropies in its probes.",
        "No run has written samples."}) {
    EXPECT_TRUE(has(text, sentence));
  }
  EXPECT_FALSE(has(text, ">nan"));
}

TEST_F(ReportTest, OneStepIsEnough) {
  FakeRun one = block_;
  one.steps = 0;
  const std::string text = page({one.write(folder_ / "one")});
  EXPECT_THAT(plot(text, "Loss against tokens"), Not(IsEmpty()));
  EXPECT_THAT(plot(text, "Depth weights of block, Before attention"), Not(IsEmpty()));
  EXPECT_TRUE(has(text, "block: a single logged step"));
}

// A run may die after any byte of its files.
TEST_F(ReportTest, AnyTruncationGivesAPage) {
  FakeRun small = block_;
  small.layers = 1;
  small.steps = 20;
  const fs::path run = small.write(folder_ / "run");
  for (const char* file : {"metrics.jsonl", "probes.jsonl", "samples.jsonl"}) {
    const std::string whole = read_file(run / file);
    for (size_t length = 0; length < whole.size(); length += whole.size() / 7 + 1) {
      write_text(run / file, whole.substr(0, length));
      EXPECT_TRUE(has(page({run}), "</html>")) << file << " cut after " << length;
    }
    write_text(run / file, whole);
  }
}

TEST_F(ReportTest, NoLayerCountMeansNoHeatMaps) {
  const fs::path run = full_.write(folder_ / "run");
  Json record = full_.record();
  record["recipe"]["model"].erase("layers");
  write_text(run / "run.json", record.dump());
  const std::string text = page({run});
  EXPECT_TRUE(has(text, "No run has depth weights"));
  EXPECT_TRUE(has(text, "run.json has no recipe.model.layers"));
}

TEST_F(ReportTest, NegativeWeightsGetADivergingScale) {
  FakeRun dense = full_;
  dense.mechanism = "dense_former";
  const fs::path run = dense.write(folder_ / "run");
  const std::string before = page({run});
  const std::string probes = read_file(run / "probes.jsonl");
  write_text(
      run / "probes.jsonl",
      std::regex_replace(probes, std::regex("(\"site\":4,\"name\":\"depth_weights\",\"value\":.)"),
                         "$01-"));
  const std::string after = page({run});
  EXPECT_FALSE(has(before, "mean weight <span class=\"scale\">-"));
  EXPECT_TRUE(has(after, "mean weight <span class=\"scale\">-"));
}

TEST_F(ReportTest, LeavesTheOldPageWhenItFails) {
  write_text(folder_ / "report.html", "old");
  EXPECT_THROW(page({folder_ / "absent"}), Error);
  EXPECT_EQ(read_file(folder_ / "report.html"), "old");
}

TEST_F(ReportTest, MakesTheFolderOfThePage) {
  const fs::path out = folder_ / "new" / "deep" / "report.html";
  write_report({base_.write(folder_ / "base")}, {.out = out});
  EXPECT_TRUE(fs::exists(out));
}

}  // namespace
}  // namespace attnres::report_test
