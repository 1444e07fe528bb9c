// The compare subcommand.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/options.h"
#include "app/study_shown.h"
#include "attnres/data/corpus.h"
#include "attnres/data/passes.h"
#include "attnres/study/quick_study.h"
#include "attnres/study/study.h"
#include "attnres/support/compute_device.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/machine.h"
#include "attnres/support/terminal.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr double kDefaultSeconds = 3600, kLeastSeconds = 36, kMostSeconds = 36e6;
constexpr int64_t kDefaultSeeds = 3;

struct CompareOptions {
  std::vector<std::string> data, mechanisms;
  std::string out;     // a folder of studies/ if not given
  double seconds = 0;  // 0 where it is not given
  int64_t seeds = 0;   // 0 where it is not given
  int64_t jobs = 1;
  int64_t threads = 0;  // 0 where it is not given
  std::string device;   // empty where it is not given
  bool tune = false, smoke = false, dry_run = false, json = false;

  // What was chosen, as a study's file, so that the same command goes on with it.
  fs::path file() const { return folder() / kComparisonFile; }
  // What is tiny does not lie where the real runs will.
  fs::path folder() const {
    return !out.empty() ? fs::path(out)
                        : fs::path("studies") / (smoke ? "compare-smoke" : "compare");
  }
  std::string device_name() const { return device.empty() ? "cpu" : find_device(device).str(); }
  std::vector<fs::path> texts() const { return {data.begin(), data.end()}; }
  int threads_of_run() const {
    const int each = describe_machine().cores / static_cast<int>(jobs);
    return threads > 0 ? static_cast<int>(threads) : std::max(each, 1);
  }
};

// On standard output, unless that is for a program.
void say(const CompareOptions& options, const std::string& text) {
  const std::string lines = wrapped(text, text_columns()) + "\n";
  fmt::print(options.json ? stderr : stdout, "{}", lines);
}

// Tokens to train on, which are bytes.
int64_t text_tokens(const CompareOptions& options) {
  const Corpus corpus = without_duplicates(
      read_corpus(options.data.empty() ? default_corpus_paths() : options.texts()));
  const double trained = 1 - DataConfig().validation_fraction;
  return static_cast<int64_t>(trained * static_cast<double>(corpus.bytes));
}

QuickAims aims_of(const CompareOptions& options) {
  QuickAims aims = {.mechanisms = options.mechanisms,
                    .seeds = options.seeds > 0 ? options.seeds : kDefaultSeeds,
                    .seconds = options.seconds > 0 ? options.seconds : kDefaultSeconds,
                    .tune = options.tune};
  if (aims.mechanisms.empty()) aims.mechanisms = {"residual", "block_attn_res", "attn_res"};
  require_mechanisms(aims.mechanisms);
  aims.text_tokens = text_tokens(options);
  aims.jobs = runs_side_by_side(static_cast<int>(options.jobs), options.threads_of_run(),
                                options.device_name());
  return aims;
}

// What decides what is chosen: of one that is the same, the choice stands.
Json reasons_of(const CompareOptions& options, const QuickAims& aims) {
  Json data = Json::array();
  for (const fs::path& text : options.texts()) data.push_back(fs::canonical(text).string());
  return {{"mechanisms", aims.mechanisms},
          {"seeds", aims.seeds},
          {"seconds", aims.seconds},
          {"tune", aims.tune},
          {"data", data},
          {"text_tokens", aims.text_tokens},
          {"jobs", options.jobs},
          {"threads", options.threads_of_run()},
          {"device", options.device_name()},
          {"processor", describe_machine().cpu}};
}

std::string sentence_of(const QuickAims& aims, const QuickChoice& choice) {
  const auto tokens = static_cast<double>(choice.tokens);
  const int64_t width = choice.base.at("model").at("width");
  return fmt::format(
      "{} of a model with 8 Transformer layers of width {} and {} parameters: {} tokens each, "
      "which are {:.1f} a parameter and {}. {}",
      counted(std::ssize(aims.mechanisms) * aims.seeds, "run"), width,
      format_count(static_cast<double>(choice.parameters)), format_count(tokens),
      tokens / static_cast<double>(choice.parameters),
      format_passes(tokens / static_cast<double>(aims.text_tokens), "the text"), choice.why);
}

Json to_json(const QuickSpeeds& speeds) {
  return {{"matmul", speeds.matmul}, {"copy", speeds.copy}, {"mixing", speeds.mixing}};
}

StudyRecipe choose(const QuickAims& aims, const Json& reasons) {
  const QuickSpeeds speeds =
      measure_quick_speeds(aims.mechanisms, reasons.at("threads"), reasons.at("device"));
  const QuickChoice choice = choose_quick_study(aims, speeds);
  StudyRecipe study = quick_study(choice.base, aims.mechanisms, aims.seeds, aims.tune);
  const Json sentences = {sentence_of(aims, choice),
                          quick_rate_sentence(choice.base.at("model").at("width"), aims.tune)};
  study.chosen =
      Json{{"for", reasons}, {"speeds", to_json(speeds)}, {"sentences", sentences}}.dump();
  return study;
}

// As it was when the study was chosen, so that what is told of its time is, too. Empty where
// nothing is known of some mechanism.
SpeedOf speeds_of(const StudyRecipe& study) {
  const std::optional<QuickSpeeds> speeds = read_quick_notes(study).speeds;
  if (!speeds) return {};
  for (const std::string& mechanism : mechanisms_of(study)) {
    if (!speeds->mixing.contains(mechanism)) return {};
  }
  return speeds->speed_of();
}

bool asks_for_other_time(const CompareOptions& options, const StudyRecipe& before) {
  const Json reasons = read_quick_notes(before).reasons;
  return options.seconds > 0 && reasons.is_object() &&
         reasons.value("seconds", Json()) != options.seconds;
}

// With other mechanisms or seeds where they are given: runs that are there stay what they are.
StudyRecipe take_up_comparison(const CompareOptions& options) {
  const StudyRecipe before = read_study(options.file());
  std::vector<std::string> mechanisms = mechanisms_of(before);
  if (!options.mechanisms.empty()) mechanisms = options.mechanisms;
  require_mechanisms(mechanisms);
  require_usage(!options.tune || before.tune,
                "{}: this comparison began without --tune; choose another --out for one with it",
                options.folder().string());
  say(options,
      fmt::format(
          "{}: goes on with the model that was chosen before{}", options.folder().string(),
          asks_for_other_time(options, before) ? "; for other --hours choose another --out" : ""));
  StudyRecipe study =
      quick_study(parse_json(before.base, options.file().string()), mechanisms,
                  options.seeds > 0 ? options.seeds : before.seeds, before.tune.has_value());
  study.chosen = before.chosen;
  return study;
}

// The one that --dry-run showed, where it was for the same.
StudyRecipe begin_comparison(const CompareOptions& options) {
  const QuickAims aims = aims_of(options);
  const Json reasons = reasons_of(options, aims);
  if (path_exists(options.file())) {
    StudyRecipe shown = read_study(options.file());
    const bool is_same = mechanisms_of(shown) == aims.mechanisms;
    if (is_same && read_quick_notes(shown).reasons == reasons) return shown;
  }
  return choose(aims, reasons);
}

// What the time that is told does not know.
std::string reserve(const CompareOptions& options) {
  if (options.device_name() != "cpu") {
    return " That is by how fast the GPU multiplies and copies; small models leave it waiting, and "
           "take longer.";
  }
  const int cores = describe_machine().cores;
  const double load = load_average();
  return load < cores ? ""
                      : fmt::format(
                            " It is busy now (a load of {:.1f} on {}): when it is quiet it takes "
                            "less, and a larger model may fit the time.",
                            load, counted(cores, "core"));
}

void explain(const CompareOptions& options, const StudyRecipe& study, double seconds) {
  for (const std::string& sentence : read_quick_notes(study).sentences) say(options, sentence);
  const std::string& baseline = study.baseline.front().second;
  say(options,
      mechanisms_of(study).size() > 1
          ? fmt::format("The others are compared with {}.", baseline)
          : fmt::format("Nothing is compared with {} yet: more --mechanisms can be added later.",
                        baseline));
  say(options, fmt::format("All of it takes about {} on this machine, if it does nothing else.{}",
                           format_duration(seconds), reserve(options)));
}

void run_compare(const CompareOptions& options) {
  if (!options.device.empty()) find_device(options.device);  // or throws
  require_out_beside(options.folder(), options.data);
  const bool has_begun =
      path_exists(StudyPaths{options.folder()}.study_json()) && path_exists(options.file());
  StudyJob job;
  job.study = has_begun ? take_up_comparison(options) : begin_comparison(options);
  job.grid.smoke = options.smoke;
  if (options.seeds > 0) job.grid.seeds = options.seeds;
  job.data = options.texts();
  job.out = options.folder();
  job.jobs = static_cast<int>(options.jobs);
  job.threads = static_cast<int>(options.threads);
  job.device = options.device;
  job.speed_of = speeds_of(job.study);
  // Refuses what does not belong together before anything is written.
  const StudyOutlook outlook = look_ahead(job);
  job.speed_of = outlook.speed_of;
  if (!has_begun && !options.smoke) explain(options, job.study, outlook.seconds(job.jobs));
  if (!options.dry_run || !has_begun) {
    make_folder(job.out);
    write_file(options.file(), quick_study_json(job.study).dump(2) + "\n");
  }
  if (options.dry_run) {
    print_plan(job);
  } else {
    show_study(job, options.json);
  }
}

}  // namespace

void add_compare_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "compare",
      "Compare mechanisms on your own text, in the time that you give. Chooses a model that this\n"
      "machine trains in that time, trains it with each mechanism and seed, and writes a page.\n"
      "The folder is a study's, and the same command goes on where it stopped.");
  const auto options = std::make_shared<CompareOptions>();
  add_path(command, "--data PATH", options->data,
           "files and folders of text (default: the compiler's C and C++ headers)");
  add_option(command, "--mechanisms MECHANISM,...", options->mechanisms,
             "what to compare, separated by commas, of those that attnres mechanisms lists "
             "(default: residual,block_attn_res,attn_res)")
      ->delimiter(',')
      ->transform(without_blanks());
  add_whole(command, "--seeds N", options->seeds, {1, 1000},
            "runs of each mechanism, which are compared in pairs (default: 3)");
  add_option(command, "--hours TIME", options->seconds,
             "the time that all runs together may take, in hours or as 90m (default: 1)")
      ->transform(duration(kLeastSeconds, kMostSeconds, 'h'));
  add_path(command, "--out DIR", options->out,
           "the folder (default: studies/compare, with --smoke studies/compare-smoke)");
  add_whole(command, "--jobs N", options->jobs, {1, 4096},
            "runs at once, which divide the cores among them; on a GPU they share it")
      ->capture_default_str();
  add_whole(command, "--threads N", options->threads, {1, 4096},
            "threads of each run (default: the cores over --jobs)");
  add_device(command, options->device,
             "where runs compute: cpu, cuda or cuda:1 (default: where they did before, or cpu)");
  command.add_flag("--tune", options->tune,
                   "try four learning rates for each mechanism in short runs, and train it with "
                   "the best (default: one by a formula for all)");
  command.add_flag("--smoke", options->smoke,
                   "every run tiny, and one seed, to see in a minute whether all of them work");
  command.add_flag("--dry-run", options->dry_run,
                   "show what is chosen and what the runs take, and keep the choice for the same "
                   "command without it; train nothing");
  command.add_flag("--json", options->json, "print study.json");
  group_options(command, kComputing, {"--jobs", "--threads", "--device"});
  command.footer(
      "Examples:\n"
      "  attnres compare --data book.txt --dry-run\n"
      "  attnres compare --data book.txt --hours 8 --out studies/book\n"
      "  attnres compare --data book.txt --mechanisms residual,mhc,dense_former --seeds 5");
  command.callback([options] { run_compare(*options); });
}

}  // namespace attnres
