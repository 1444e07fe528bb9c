#include "attnres/study/study_page.h"

#include <gmock/gmock.h>

#include <cstring>
#include <map>
#include <regex>

#include "attnres/study/study_figures.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/report/fake_run.h"
#include "tests/study/planted_study.h"
#include "tests/text/test_files.h"

namespace attnres::testing::study_page_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

// Unlike HasSubstr, a failure doesn't print the page.
bool has(const std::string& page, const std::string& part) {
  return page.find(part) != std::string::npos;
}

fs::path write_json(const fs::path& folder, const Json& study) {
  testing::write_text(folder / "study.json", study.dump());
  return folder;
}

std::string page_of(const fs::path& folder) {
  return read_file(write_study_page(folder).page);
}

std::string planted_page(const char* name, double advantage) {
  return page_of(write_json(fresh_folder(name), planted_study(advantage)));
}

TEST(StudyPage, TellsAPlantedAdvantageAndNoOther) {
  const std::string page = planted_page("page-125", 1.25);
  std::smatch found;
  const std::regex sentence(
      "residual needs ([0-9.]+) times the compute for the loss of block: 95 % interval ([0-9.]+) "
      "to ([0-9.]+), which excludes 1 and agrees with the report’s 1.25");
  ASSERT_TRUE(std::regex_search(page, found, sentence));
  EXPECT_NEAR(std::stod(found[1]), 1.25, 0.05);
  EXPECT_LT(std::stod(found[2]), 1.25);
  EXPECT_GT(std::stod(found[2]), 1);
  EXPECT_TRUE(has(page, "block · 32 is better than residual · 32"));

  const std::string control = planted_page("page-100", 1);
  EXPECT_TRUE(has(control, "which includes 1 and excludes the report’s 1.25"));
  EXPECT_FALSE(has(control, "which excludes 1"));
  EXPECT_TRUE(has(control, "block · 32 is not distinguishable from residual · 32"));
  EXPECT_TRUE(has(control, "seeds would tell a difference of 0.005."));
}

// A row for each width, with both baseline and block done there.
TEST(StudyPage, ComparesTheArmsOfAnAxisInRows) {
  Json study = planted_study(1.25);
  study["figures"] = {{{"kind", "forest"}, {"x", "width"}}};
  for (Json& run : study["runs"]) {
    if (run["arms"] == Json{{"mixing", "block"}, {"width", "96"}}) run["state"] = "missing";
  }
  const std::string page = page_of(write_json(fresh_folder("forest"), study));
  const size_t figure = page.find("Minus the baseline’s loss");
  const size_t arms = page.find("<h2>Arms</h2>");
  ASSERT_LT(figure, arms);
  ASSERT_NE(arms, std::string::npos);
  const std::string drawn = page.substr(figure, arms - figure);
  for (const char* width : {">32<", ">64<", ">128<", ">160<"}) EXPECT_TRUE(has(drawn, width));
  EXPECT_FALSE(has(drawn, ">96<"));
  EXPECT_TRUE(has(page, "Not in it: 1 arm of which no run is done yet."));

  study["figures"] = {{{"kind", "forest"}, {"x", "nowhere"}}};
  EXPECT_TRUE(has(page_of(write_json(fresh_folder("forest-nowhere"), study)), "no axis “nowhere”"));
}

// Block has its own rate at widths 32 and 64, with which it ends lower and higher.
Json with_own_rates(Json study) {
  study["axes"].push_back("rate");
  study["tuning"] = {{"key", "train.learning_rate"}, {"trials", Json::array()}};
  const std::map<std::string, double> shifts = {{"32", -0.01}, {"64", 0.02}};
  Json own = Json::array();
  for (Json& run : study["runs"]) {
    run["arms"]["rate"] = "common";
    const auto shift = shifts.find(run["arms"]["width"]);
    if (run["arms"]["mixing"] != "block" || shift == shifts.end()) continue;
    Json& added = own.emplace_back(run);
    added["name"] = run["name"].get<std::string>() + "-own";
    added["arms"]["rate"] = "own";
    const double of_seed = 0.001 * (run["seed"].get<int>() - 2);
    added["final_val_loss"] = run["final_val_loss"].get<double>() + shift->second + of_seed;
  }
  study["runs"].insert(study["runs"].end(), own.begin(), own.end());
  return study;
}

// Differences of -0.01 and 0.02, +- 0.001 over three seeds: t_{0.975,2} = 4.3027.
TEST(StudyPage, ComparesOwnRatesWithTheCommonOne) {
  const std::string page =
      page_of(write_json(fresh_folder("own-rates"), with_own_rates(planted_study(1.25))));
  const size_t start = page.find("At its own rate");
  ASSERT_NE(start, std::string::npos);
  const std::string table = page.substr(start, page.find("<h3>Trials") - start);
  EXPECT_FALSE(has(table, "common</bdi>"));
  EXPECT_TRUE(has(table, "2 arms have another rate of their own; with it 1 ends higher"));
  EXPECT_TRUE(has(table, ">block · 32<") && has(table, ">block · 64<"));
  EXPECT_TRUE(has(table, ">−0.0100<") && has(table, ">−0.0125 to −0.0075<"));
  EXPECT_TRUE(has(table, ">+0.0200<") && has(table, ">+0.0175 to +0.0225<"));
  EXPECT_TRUE(has(table, ">better<") && has(table, ">worse<"));

  Json common = planted_study(1.25);
  common["tuning"] = {{"key", "train.learning_rate"}, {"trials", Json::array()}};
  EXPECT_FALSE(has(page_of(write_json(fresh_folder("no-own-rates"), common)), "At its own rate"));
}

TEST(StudyPage, DoesNotFitTwoBudgets) {
  Json study = planted_study(1.25);
  std::erase_if(study["runs"].get_ref<Json::array_t&>(), [](const Json& run) {
    const std::string width = run["arms"]["width"];
    return width != "32" && width != "64";
  });
  const std::string page = page_of(write_json(fresh_folder("two-budgets"), study));
  EXPECT_TRUE(has(page, "a fit needs three budgets at least"));
  EXPECT_FALSE(has(page, "times the compute"));
}

TEST(StudyPage, RefreshesWhileRunsAreLeft) {
  const fs::path folder = fresh_folder("refresh");
  Json study = planted_study(1.25);
  study["runs"][3]["state"] = "failed";
  study["runs"][3]["error"] = "no <b>room</b>";
  const std::string failed = page_of(write_json(folder, study));
  EXPECT_FALSE(has(failed, "http-equiv=\"refresh\""));
  EXPECT_TRUE(has(failed, "29 of 30 runs done, 1 failed."));
  EXPECT_TRUE(has(failed, "no &lt;b&gt;room&lt;/b&gt;"));
  EXPECT_FALSE(has(failed, "<b>room"));
  study["runs"][5]["state"] = "diverged";
  EXPECT_FALSE(has(page_of(write_json(folder, study)), "http-equiv"));
  study["runs"][5]["state"] = "done";
  study["runs"][4]["state"] = "missing";
  const std::string left = page_of(write_json(folder, study));
  EXPECT_TRUE(has(left, "<meta http-equiv=\"refresh\" content=\"60\">"));
  EXPECT_TRUE(has(left, "28 of 30 runs done, 1 failed, 1 to come."));
  EXPECT_TRUE(has(left, ">to come<"));
  EXPECT_FALSE(has(left, ">missing<"));
}

// A study with run folders and inspections, that asks for every figure.
fs::path full_study(const char* name) {
  const fs::path folder = fresh_folder(name);
  Json study = planted_study(1.25);
  std::erase_if(study["runs"].get_ref<Json::array_t&>(),
                [](const Json& run) { return run["arms"]["width"] != "32"; });
  study["figures"] = Json::array();
  for (const std::string& kind : figure_kinds()) study["figures"].push_back({{"kind", kind}});
  study["figures"][1]["x"] = "mixing";
  study["tuning"] = {
      {"key", "train.learning_rate"},
      {"values", {0.001, 0.003}},
      {"trials",
       {{{"arms", {{"mixing", "residual"}}}, {"value", 0.001}, {"final_val_loss", 2.5}},
        {{"arms", {{"mixing", "residual"}}}, {"value", 0.003}, {"final_val_loss", 2.25}}}},
      {"chosen", {{{"arms", {{"mixing", "residual"}}}, {"common", 0.003}, {"own", nullptr}}}}};
  for (const Json& run : study["runs"]) {
    const bool is_block = run["arms"]["mixing"] == "block";
    FakeRun fake{.name = run["name"], .mechanism = is_block ? "block_attn_res" : "residual"};
    fs::create_directories(folder / "runs");
    const fs::path path = fake.write(folder / "runs" / fake.name);
    Json record = fake.record();
    record["recipe"]["model"]["heads"] = 4;
    testing::write_text(path / "run.json", record.dump());
    Json inspection = {
        {"mixing_matrices",
         {{{"stream", ""},
           {"mean", {{1, nullptr}, {0.25, 0.75}}},
           {"semiseparable_rank", 7},
           {"semiseparable_rank_of_samples", 1}}}},
        {"effects",
         {{"loss", 2.0},
          {"layers", {{{"layer", 1}, {"change", 0.5}}, {{"layer", 2}, {"change", 0.25}}}},
          {"sources", {{{"name", "embedding"}, {"change", 0.1}}}}}},
        {"similarity", {{"sources", {"embedding", "a'b"}}, {"cosine", {{1, 0.5}, {0.5, 1}}}}},
        {"by_position",
         {{{"name", "first"},
           {"sites", {{{"site", 1}, {"weights", {0.125, 0.875}}, {"entropy", 0.5}}}}}}},
        {"effective_depth", 3.5}};
    testing::write_text(path / "inspection.json", inspection.dump());
  }
  return write_json(folder, study);
}

TEST(StudyPage, DrawsEveryFigure) {
  const fs::path folder = full_study("full");
  const StudyPage summary = write_study_page(folder);
  EXPECT_THAT(summary.notes, IsEmpty());
  const std::string page = read_file(summary.page);
  for (const char* alt :
       {"Mean final validation loss", "Mean difference to the baseline of the same seed",
        "Mean final loss of block by shape", "Validation loss against step",
        "Magnitude of gradients, block", "Entropy of depth weights against step",
        "Depth weights of block, Before attention", "Depth weights of block at step 200",
        "Depth mixing matrix of residual", "Change of the loss without a Transformer layer",
        "Change of the loss without a source, block", "Cosine similarity of sources, block",
        "Time per token over the baseline", "Validation loss against tokens"}) {
    EXPECT_TRUE(has(page, std::string("aria-label=\"") + alt)) << alt;
  }
  const std::string command = std::string("attnres train --recipe ") +
                              "&#39;recipes/block-32-seed2.json&#39; --out "
                              "&#39;again/block-32-seed2&#39; --threads 2 --data "
                              "&#39;/book.txt&#39;";
  EXPECT_TRUE(has(page, command));
  for (const char* text :
       {"It does (Fig. 4).", "<b>2.2500</b>", "not chosen yet",
        "semiseparable rank 1, of the mean 7", "of one token has semiseparable rank 1.",
        "baseline’s time per token", "3.50", "0.875", "model.depth_mixing.type", "two cores"}) {
    EXPECT_TRUE(has(page, text)) << text;
  }
  EXPECT_FALSE(has(page, "does not know"));
  EXPECT_FALSE(has(page, "nan"));
}

// Formats that add 0.5 to the baseline, and to block 0.25, 0.5 and 0.75 more with one seed each.
TEST(StudyPage, TellsWhatQuantizedWeightsAdd) {
  const fs::path folder = fresh_folder("quantized");
  fs::create_directories(folder / "runs");
  Json study = planted_study(1.25);
  study["figures"] = {{{"kind", "quantization"}}};
  std::erase_if(study["runs"].get_ref<Json::array_t&>(),
                [](const Json& run) { return run["arms"]["width"] != "32"; });
  EXPECT_TRUE(has(page_of(write_json(folder, study)), "No model has been scored with quantized"));
  for (const Json& run : study["runs"]) {
    const bool is_block = run["arms"]["mixing"] == "block";
    FakeRun fake{.name = run["name"], .mechanism = is_block ? "block_attn_res" : "residual"};
    const fs::path path = fake.write(folder / "runs" / fake.name);
    testing::write_text(path / "run.json", fake.record().dump());
    const double whole = run["seed"];
    const double added = 0.5 + (is_block ? 0.25 * run["seed"].get<double>() : 0);
    testing::write_text(path / "loss-f32.json", Json{{"loss", whole}}.dump());
    testing::write_text(path / "loss-q4_0.json", Json{{"loss", whole + added}}.dump());
  }
  const std::string page = page_of(write_json(folder, study));
  // ((1.96 + 0.84) 0.25 / 0.005)^2 = 19,622 seeds, by the normal distribution.
  // 0.5 +- t_{0.975, 2} 0.25 / sqrt(3), p of t = 0.5 / (0.25 / sqrt(3)) = 3.464.
  EXPECT_TRUE(has(page,
                  "q4_0 weights add +1.00000 nats per token to block, +0.50000 beside the "
                  "baseline (95 % interval −0.12103 to +1.12103): not distinguishable. "
                  "About 19,62"));
  EXPECT_TRUE(has(page, "0.074"));
  testing::write_text(folder / "runs" / "block-32-seed1" / "loss-q4_0.json", "{}");
  EXPECT_THAT(write_study_page(folder).notes, ElementsAre(HasSubstr("has no number \"loss\"")));
}

// Shapes of which a mechanism gains 0.01 and 0.03, and loses 0.01 at one.
TEST(StudyPage, ComparesShapes) {
  struct Shape {
    const char* width;  // the arm's name, of the planted study
    int layers, heads;
    double gain;
  };
  const std::vector<Shape> shapes = {{"32", 8, 4, 0.01}, {"64", 16, 4, 0.03}, {"96", 4, 4, -0.01}};
  const fs::path folder = fresh_folder("shapes");
  fs::create_directories(folder / "runs");
  Json study = planted_study(1.25);
  study["figures"] = {{{"kind", "heatmap"}}};
  Json runs = Json::array();
  for (Json run : study["runs"]) {
    for (const Shape& shape : shapes) {
      if (run["arms"]["width"] != shape.width) continue;
      const bool is_block = run["arms"]["mixing"] == "block";
      run["final_val_loss"] = 2 + (is_block ? -shape.gain : 0.001 * run["seed"].get<double>());
      FakeRun fake{.name = run["name"], .mechanism = is_block ? "block_attn_res" : "residual"};
      const fs::path path = fake.write(folder / "runs" / fake.name);
      Json record = fake.record();
      record["recipe"]["model"].update(
          {{"layers", shape.layers}, {"heads", shape.heads}, {"width", 64}});
      testing::write_text(path / "run.json", record.dump());
      runs.push_back(run);
    }
  }
  study["runs"] = runs;
  const std::string page = page_of(write_json(folder, study));
  // Each gain and 0.002, the mean of the seeds' 0.001 to 0.003: t of 2 degrees of freedom is 4.303,
  // the deviation of the shapes' 0.02.
  EXPECT_TRUE(has(page,
                  "block: least loss 1.9700 at width / layers 4 and heads / layers 0.25; lower "
                  "than residual at 2 of 3 shapes, by −0.0120 on average (95 % interval "
                  "−0.0617 to +0.0377, of the shapes’ means)."));
  EXPECT_TRUE(has(page, "residual: least loss 2.0020 at "));
  EXPECT_TRUE(has(page, "aria-label=\"Mean final loss of block minus residual by shape"));
  EXPECT_FALSE(has(page, "residual minus residual"));
}

TEST(StudyPage, SaysWhatWasTrained) {
  const fs::path folder = full_study("trained");
  Json study = parse_json(read_file(folder / "study.json"), "study");
  study["tuning"] = nullptr;
  study["chosen"] = {{"sentences", {"The largest <size>."}}};
  for (const Json& run : study["runs"]) {
    const bool is_block = run["arms"]["mixing"] == "block";
    const fs::path file = folder / "runs" / run["name"].get<std::string>() / "run.json";
    Json record = parse_json(read_file(file), "run.json");
    record["recipe"]["model"].update({{"ffn_width", 176}, {"heads", 2}});
    record["recipe"]["train"] = {{"steps", 1060},       {"batch_size", 8},
                                 {"context", 256},      {"learning_rate", is_block ? 0.002 : 0.004},
                                 {"warmup", 53},        {"schedule", "cosine"},
                                 {"optimizer", "adamw"}};
    record["recipe"]["tokenizer"] = {{"kind", "bytes"}};
    testing::write_text(file, record.dump());
  }
  const std::string page = page_of(write_json(folder, study));
  const size_t start = page.find("<h2>What was trained</h2>");
  ASSERT_NE(start, std::string::npos);
  const std::string box = page.substr(start, page.find("</aside>", start) - start);
  for (const char* said :
       {"Transformer layers: 4; width: 64; heads: 2; feed-forward width: 176; tokenizer: bytes",
        "a small text: 1,003,854 tokens, and 111,540 to validate on",
        "1,060 of 8 sequences of 256 tokens: 100.0K tokens a run, 100 a parameter",
        "0.002, 0.004 at its peak (tuned to no arm), after 53 steps of warm-up; schedule: cosine",
        "; optimizer: adamw", "3 seeds an arm, on 2 threads each",
        "<p>The largest &lt;size&gt;.</p>"}) {
    EXPECT_TRUE(has(box, said)) << said << "\n" << box;
  }
  // Nothing has begun: nothing is said.
  fs::remove_all(folder / "runs");
  EXPECT_FALSE(has(page_of(folder), "What was trained"));
}

// Four steps tell nothing of arms, and nothing of what they cost.
TEST(StudyPage, OfTinyRunsHasABannerAndNoVerdict) {
  const fs::path folder = full_study("smoke");
  Json study = parse_json(read_file(folder / "study.json"), "study");
  const std::string real = page_of(folder);
  study["smoke"] = true;
  const StudyPage summary = write_study_page(write_json(folder, study));
  const std::string page = read_file(summary.page);
  EXPECT_THAT(summary.sentences, IsEmpty());
  EXPECT_THAT(summary.findings, IsEmpty());
  EXPECT_FALSE(has(real, "Smoke test"));
  EXPECT_TRUE(has(page, "<aside class=\"banner\"><h2>Smoke test</h2>"));
  EXPECT_TRUE(has(page, "the same command without --smoke, in another folder, does"));
  for (const char* verdict : {"is better than", "<h2>Arms</h2>", "What we saw", "p-value",
                              "Time per token", "tokens/s"}) {
    EXPECT_TRUE(has(real, verdict)) << verdict;
    EXPECT_FALSE(has(page, verdict)) << verdict;
  }
  // That all of it works, it shows.
  EXPECT_TRUE(has(page, "Depth weights of block"));
  EXPECT_TRUE(has(page, "<h2>Runs</h2>"));
}

TEST(StudyPage, SpeaksOfABaselineWhereItShowsOne) {
  const fs::path folder = full_study("baseline");
  const auto shows_and_says = [](const std::string& page) {
    return std::pair(has(page, "Validation loss minus the baseline’s"),
                     has(page, "The baseline’s is taken off seed by seed."));
  };
  const auto [shows, says] = shows_and_says(page_of(folder));
  EXPECT_EQ(shows, says);
  // An arm "residual" would be one.
  std::string text = read_file(folder / "study.json");
  for (size_t at = 0; (at = text.find("\"residual\"", at)) != std::string::npos;) {
    text.replace(at, std::strlen("\"residual\""), "\"plain\"");
  }
  Json study = parse_json(text, "study");
  study["baseline"] = Json::object();
  const std::string page = page_of(write_json(folder, study));
  EXPECT_EQ(shows_and_says(page), std::pair(false, false));
  EXPECT_TRUE(has(page, "This study names no baseline"));
  EXPECT_FALSE(has(page, "seed by seed; negative is lower"));
}

// Whatever lacks what, the page is written and says so.
TEST(StudyPage, SaysWhatIsMissing) {
  const fs::path folder = full_study("lacking");
  fs::remove_all(folder / "runs");
  EXPECT_NO_THROW(write_study_page(folder));
  fs::create_directories(folder / "runs" / "block-32-seed1");
  testing::write_text(folder / "runs" / "block-32-seed1" / "run.json", "{");
  Json study = parse_json(read_file(folder / "study.json"), "study");
  study["figures"].push_back({{"kind", "<i>"}});
  study["figures"].push_back({{"kind", "curve"}, {"x", "nowhere"}});
  write_json(folder, study);
  const StudyPage summary = write_study_page(folder);
  ASSERT_EQ(summary.notes.size(), 1u);
  EXPECT_THAT(summary.notes[0], HasSubstr("run.json"));
  const std::string page = read_file(summary.page);
  EXPECT_TRUE(has(page, "a figure “&lt;i&gt;”, which this version does not know"));
  EXPECT_TRUE(has(page, "no axis “nowhere”"));
  EXPECT_TRUE(has(page, "No run has been inspected yet."));
}

TEST(StudyPage, WarnsOfTextThatIsReadOftenAgain) {
  const fs::path folder = full_study("repeated");  // runs of 100,000 tokens
  const auto page_of_text = [&](int64_t train_tokens) {
    for (const char* run : {"block-32-seed1", "block-32-seed2"}) {
      const fs::path file = folder / "runs" / run / "run.json";
      Json record = parse_json(read_file(file), run);
      record["data"]["train_tokens"] = train_tokens;
      testing::write_text(file, record.dump());
    }
    return page_of(folder);
  };
  EXPECT_TRUE(has(page_of_text(20000), "2 runs go more than 4 times over the text (at most 5.0)."));
  EXPECT_FALSE(has(page_of_text(25000), "times over the text"));
}

TEST(StudyPage, NamesTheTextAndAClaimOnlyWhereThereIsOne) {
  Json study = planted_study(1.25);
  const fs::path folder = fresh_folder("title");
  const std::string claimed = page_of(write_json(folder, study));
  EXPECT_TRUE(has(claimed, "<title>attnres study: planted: book.txt</title>"));
  EXPECT_TRUE(has(claimed, "<h2>Claim and result</h2>"));
  study["claim"] = "";
  study["data"] = {"/a<b>.txt", "/folder", "/c", "/d", "/e"};
  const std::string plain = page_of(write_json(folder, study));
  EXPECT_TRUE(has(plain, "<bdi>planted: a&lt;b&gt;.txt, folder, c and 2 more</bdi>"));
  EXPECT_TRUE(has(plain, "<h2>Result</h2>"));
  EXPECT_FALSE(has(plain, "Claim"));
  study["data"] = Json::array();
  EXPECT_TRUE(has(page_of(write_json(folder, study)), "<title>attnres study: planted</title>"));
}

TEST(StudyPage, RefusesWhatIsNoStudy) {
  const fs::path folder = fresh_folder("none");
  EXPECT_THAT([&] { write_study_page(folder); },
              ThrowsMessage<Error>(HasSubstr("it has no study.json")));
  EXPECT_FALSE(fs::exists(folder / "report.html"));
}

TEST(StudyPage, EqualFoldersGiveAnEqualPage) {
  const fs::path folder = write_json(fresh_folder("equal"), planted_study(1.25));
  EXPECT_EQ(page_of(folder), page_of(folder));
}

}  // namespace
}  // namespace attnres::testing::study_page_test
