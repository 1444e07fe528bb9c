// The folder of a training run, as report, watch, --resume and --from read it. gnuplot, a process
// for each figure, is left out.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/report/comparison.h"
#include "attnres/report/depth_entropy.h"
#include "attnres/report/metrics_table.h"
#include "attnres/report/run_data.h"
#include "attnres/report/run_figures.h"
#include "attnres/study/live_view.h"
#include "attnres/train/run_folder/run_events.h"
#include "attnres/train/run_folder/run_folder.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/report/fake_run.h"

namespace attnres::run_folder_fuzz {
namespace {

using namespace testing;

const std::vector<std::string> kFiles = {"run.json", "metrics.jsonl", "probes.jsonl",
                                         "samples.jsonl", "trace.json"};

void read_to_go_on(const RunPaths& paths) {
  const Json run = read_run_json(paths);
  Json longer = run;
  longer["recipe"]["train"]["steps"] = 1 << 20;
  with_changes(run, longer, 1);
  require_same_run(paths.folder, run, longer);
}

void run(std::string_view input) {
  put_files(input, kFiles);
  const RunPaths paths{fuzz_folder()};
  attempt([&] { read_to_go_on(paths); });
  attempt([&] { metrics_table({paths.folder}); });
  attempt([&] { draw_live(read_live_run(paths.folder), {.columns = 80, .lines = 24}); });
  attempt([&] { RunEvents(paths, /*sublayers=*/8); });
  // Twice, for what is told of two.
  std::vector<RunData> runs = read_runs({paths.folder});
  runs.push_back(runs.front());
  compare(runs);
  for (const RunData& read : runs) depth_entropies(read);
  schedule_figures(runs);
}

std::string seed_of(const FakeRun& fake) {
  return joined_files(fake.write(fuzz_folder() / "seed"), kFiles);
}

std::vector<std::string> seeds() {
  const std::string residual = seed_of({.name = "a", .layers = 2, .steps = 20});
  const std::string blocks =
      seed_of({.name = "b", .mechanism = "block_attn_res", .layers = 2, .steps = 20});
  const std::string to_resume = joined_inputs(
      {Json{{"recipe", {{"name", "a"}, {"train", {{"steps", 10}}}, {"model", {{"layers", 1}}}}},
            {"data",
             {{"paths", {"text"}},
              {"hash", "h"},
              {"split", "given"},
              {"validation_paths", {"more"}},
              {"validation_hash", "v"},
              {"validation_left_out", {1}}}},
            {"from", {{"name", "b"}, {"step", 3}, {"checksum", "c"}}},
            {"changes", {{{"step", 5}, {"train.steps", {8, 10}}}}},
            {"diverged", {{"step", 7}, {"error", "no number"}}}}
           .dump(),
       "{\"step\":1,\"seconds\":1,\"loss\":2}\n", "", "",
       R"({"stages":[{"rank":0,"first":0,"last":2,"holds":[],"receives":[]},)"
       R"({"rank":1,"first":2,"last":5,"holds":["embedding"],"receives":["block 1","block 2"]}],)"
       R"("traceEvents":[{"ph":"X","cat":"forward","name":"forward of micro-batch 0 through )"
       R"(stage 1","pid":1,"ts":1.5,"dur":2},{"ph":"b","id":1,"pid":0,"ts":1},)"
       R"({"ph":"e","id":1,"pid":0,"ts":2},{"ph":"X","cat":"update","pid":0,"ts":3,"dur":1},)"
       R"({"ph":"X","cat":"update","pid":1,"ts":4,"dur":1}]})"});
  return {residual, blocks, to_resume};
}

const ListedFuzzTarget kListed({"run_folder", run, seeds});

}  // namespace
}  // namespace attnres::run_folder_fuzz
