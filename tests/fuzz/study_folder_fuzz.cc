// The folder of a study, as study, compare, report and watch read it: its record, what one of its
// runs left behind, and the file of a comparison. gnuplot, a process for each figure, is left out.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/inspect/inspection.h"
#include "attnres/study/axis_arms.h"
#include "attnres/study/live_view.h"
#include "attnres/study/quick_study.h"
#include "attnres/study/seed_curves.h"
#include "attnres/study/study_data.h"
#include "attnres/study/study_folder.h"
#include "attnres/study/study_results.h"
#include "attnres/study/trained_box.h"
#include "attnres/study/tuning_section.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/report/fake_run.h"

namespace attnres::study_folder_fuzz {
namespace {

using namespace testing;

const std::vector<std::string> kFiles = {"study.json",
                                         "compare.json",
                                         "runs/a-seed1/run.json",
                                         "runs/a-seed1/metrics.jsonl",
                                         "runs/a-seed1/probes.jsonl",
                                         "runs/a-seed1/inspection.json",
                                         "runs/a-seed1/loss-q8_0.json"};

// As compare goes on with it.
void read_comparison() {
  const StudyRecipe study = read_study(fuzz_folder() / kComparisonFile);
  read_quick_notes(study);
  const std::vector<std::string> mechanisms = mechanisms_of(study);
  quick_study_json(study);
  quick_study(parse_json(study.base, "base"), mechanisms, study.seeds, study.tune.has_value());
}

void run(std::string_view input) {
  put_files(input, kFiles);
  const StudyPaths paths{fuzz_folder()};
  attempt(read_comparison);
  attempt([&] { draw_live(read_live_study(paths.folder), {.columns = 80, .lines = 24}); });
  attempt([&] { read_begun_study(paths, "s"); });
  attempt([&] { look_at_run(paths, {.name = "a-seed1", .arms = {}, .recipe = {}}); });
  logged_steps(paths.run("a-seed1"));
  const StudyData data = read_study_data(paths.folder);
  study_json(data.study).dump();
  runs_csv(data.study);
  arms_csv(data.study);
  trained_box(data);
  tuning_section(data);
  for (size_t axis = 0; axis < data.study.axes.size(); ++axis) arms_along(data, axis);
  for (const size_t arm : data.shown_arms()) {
    validation_curves(data, arm, along_steps);
    difference_curves(data, arm, along_steps);
    entropy_curves(data, arm);
  }
}

StudyRecord record() {
  StudyRecord study = {
      .name = "s",
      .question = "?",
      .axes = {"mixing", "size"},
      .figures = {Json{{"kind", "forest"}, {"x", "mixing"}}},
      .threads = 2,
      .tuning = {{"key", "train.learning_rate"},
                 {"trials",
                  {{{"arms", {{"mixing", "a"}}}, {"value", 0.1}, {"final_val_loss", 2.5}}}},
                 {"chosen", {{{"common", 0.1}, {"own", 0.2}}}}},
      .chosen = {{"sentences", {"One."}}}};
  for (const char* arm : {"residual", "a"}) {
    for (const int64_t seed : {1, 2}) {
      study.runs.push_back({.name = fmt::format("{}-seed{}", arm, seed),
                            .arms = {arm, "small"},
                            .seed = seed,
                            .state = RunState::done,
                            .step = 20,
                            .steps = 20,
                            .parameters = 100,
                            .tokens = 1000,
                            .flops = 1e9,
                            .seconds = 3,
                            .final_val_loss = 2.5 + 0.01 * static_cast<double>(seed)});
    }
  }
  return study;
}

std::vector<std::string> seeds() {
  const FakeRun fake = {.name = "a", .mechanism = "attn_res", .layers = 1, .steps = 20};
  const auto folder = fake.write(fuzz_folder() / "seed");
  Inspection inspection;
  inspection.mixing_matrices = {{"", {{1}, {0.5, 0.5}}, 1, 1}};
  inspection.effective_depth = 1.5;
  StudyRecipe comparison =
      quick_study({{"name", "compare"}, {"train", {{"steps", 8}}}}, {"residual", "mhc"}, 2, true);
  comparison.chosen =
      R"({"for":{"seconds":1},"speeds":{"matmul":1e9,"copy":1e9,"mixing":{"mhc":1}},)"
      R"("sentences":["One."]})";
  const std::string run_files = joined_files(folder, {"run.json", "metrics.jsonl", "probes.jsonl"});
  return {joined_inputs({study_json(record()).dump(), quick_study_json(comparison).dump(),
                         run_files, inspection_to_json(inspection).dump(), R"({"loss": 2.6})"}),
          joined_inputs({R"({"study":"s","runs":[{"name":"a-seed1","state":"unfinished"}]})", "",
                         R"({"recipe":{"name":"a","train":{"steps":9}},"data":{"hash":"h",)"
                         R"("paths":[]},"parameters":3})",
                         "{\"step\":1}\n{\"step\":2}\n"})};
}

const ListedFuzzTarget kListed({"study_folder", run, seeds});

}  // namespace
}  // namespace attnres::study_folder_fuzz
