// The study subcommand.
#include "attnres/study/study.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "app/commands.h"
#include "app/key_listing.h"
#include "app/options.h"
#include "app/study_shown.h"
#include "attnres/study/study_data.h"
#include "attnres/study/study_schema.h"
#include "attnres/support/compute_device.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/nearest.h"
#include "attnres/support/program.h"
#include "attnres/support/shell.h"
#include "attnres/support/terminal.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr double kShortest = 1e-4, kLongest = 1000 * 86400;  // seconds of --stop-after

struct StudyCommandOptions {
  std::string recipe, out;
  std::vector<std::string> data, validation, only;
  GridOptions grid;
  int64_t seeds = 0;  // 0 where it is not given
  int64_t jobs = 1;
  int64_t threads = 0;    // 0 where it is not given
  std::string device;     // empty where it is not given
  double stop_after = 0;  // seconds; 0 where it is not given
  bool list = false, dry_run = false, json = false;
  KeyListingOptions keys;
};

// The studies that come with the program; none where its recipes are not found.
std::optional<fs::path> find_studies() {
  const auto recipes = find_shared("recipes");
  if (!recipes || !fs::is_directory(*recipes / "studies")) return std::nullopt;
  return *recipes / "studies";
}

constexpr const char* kNoStudies =
    "the studies that come with attnres are not beside the program, and not in recipes/studies; "
    "give a study's file";

// A file, or the name of a study that comes with the program.
fs::path find_study(const std::string& recipe) {
  require_usage(!is_study_folder(recipe),
                "study {0}: is the folder of a study that has begun. The command that began it "
                "goes on with it; {1} watch {2} shows how far it is",
                recipe, program(), for_shell(recipe));
  if (path_exists(recipe)) return recipe;
  const auto folder = find_studies();
  require_usage(folder.has_value(), "study {}: no such file, and {}", recipe, kNoStudies);
  std::vector<std::string> names;
  for (const fs::path& file : json_files(*folder)) {
    if (file.stem() == recipe) return file;
    names.push_back(file.stem());
  }
  fail_usage(
      "study {}: no such file, and no study of that name comes with attnres; {} study --list "
      "names those{}",
      recipe, program(), did_you_mean(recipe, names));
}

void list_studies() {
  const auto folder = find_studies();
  require(folder.has_value(), "{}", kNoStudies);
  const std::vector<fs::path> files = json_files(*folder);
  constexpr size_t kGap = 2;
  size_t width = 0;
  for (const fs::path& file : files) width = std::max(width, file.stem().string().size());
  for (const fs::path& file : files) {
    fmt::print("{:<{}}{}\n", file.stem().string(), width + kGap,
               wrapped(read_study(file).question, text_columns(), width + kGap));
  }
}

StudyJob make_study_job(const StudyCommandOptions& options) {
  require_usage(!options.recipe.empty(),
                "name a study's file, or a study that attnres study --list names");
  StudyJob job;
  job.study = read_study(find_study(options.recipe));
  job.grid = options.grid;
  job.only = options.only;
  job.data.assign(options.data.begin(), options.data.end());
  job.validation.assign(options.validation.begin(), options.validation.end());
  job.out = options.out;
  if (job.out.empty()) {
    job.out = fs::path("studies") / (job.study.name + (options.grid.smoke ? "-smoke" : ""));
  }
  require_out_beside(job.out, options.data);
  job.jobs = static_cast<int>(options.jobs);
  job.threads = static_cast<int>(options.threads);
  job.device = options.device;
  if (options.stop_after > 0) job.stop_after = options.stop_after;
  return job;
}

void run_study_command(const StudyCommandOptions& options) {
  if (options.list) return list_studies();
  if (options.keys.is_asked()) {
    return show_keys(options.keys, study_keys(), study_schema(), options.json);
  }
  const StudyJob job = make_study_job(options);
  if (!job.device.empty()) find_device(job.device);  // or throws
  if (options.dry_run) {
    print_plan(job);
  } else {
    show_study(job, options.json);
  }
}

}  // namespace

void add_study_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "study",
      "Train a grid of runs and compare them. The study's folder keeps the runs, study.json,\n"
      "runs.csv, arms.csv and report.html. The same command goes on where it stopped, and what is\n"
      "done is not trained again.");
  const auto options = std::make_shared<StudyCommandOptions>();
  add_option(command, "recipe STUDY", options->recipe,
             "a study's JSON file, see recipes/studies/, or the name of one that --list shows");
  add_path(command, "--out DIR", options->out,
           "the study's folder (default: studies/ and its name)");
  add_path(command, "--data PATH", options->data,
           "files and folders of text (default: what the study began with, or the compiler's C "
           "and C++ headers)");
  add_path(command, "--validation PATH", options->validation,
           "text to validate on (default: what the study began with, or a part of the data)");
  add_option(command, "--set KEY=VALUE", options->grid.overrides,
             "override keys of every run's recipe, for example train.steps=200");
  CLI::Option* seeds = add_whole(command, "--seeds N", options->seeds, {1, 10000},
                                 "seeds that each combination of arms is trained with");
  add_option(command, "--only NAME", options->only,
             "train only the runs whose names match, as file names in a shell do "
             "('block*-seed1'), and those that they need");
  add_whole(command, "--jobs N", options->jobs, {1, 4096},
            "runs at once; a study's first call divides the cores among them, later ones keep to "
            "that number of threads a run. On a GPU they share it and its memory: more than one "
            "only pays where each leaves it idle")
      ->capture_default_str();
  add_whole(command, "--threads N", options->threads, {1, 4096},
            "threads of each run (default: what the study began with, or the cores over --jobs)");
  add_device(command, options->device,
             "where runs compute: cpu, cuda or cuda:1 (default: where they did before, or cpu)");
  add_option(command, "--stop-after TIME", options->stop_after,
             "save the runs and stop after this time: 2h, 90m, 45s")
      ->transform(duration(kShortest, kLongest));
  command.add_flag("--smoke", options->grid.smoke,
                   "every run tiny, to see in a minute whether all of them work");
  command.add_flag("--dry-run", options->dry_run,
                   "show the runs with their state, and their steps, tokens, FLOPs, memory and "
                   "time; write nothing");
  command.add_flag("--list", options->list, "show the studies that come with attnres");
  command.add_flag("--json", options->json, "print study.json");
  options->keys.add_to(command, "study's file");
  group_options(command, kComputing, {"--jobs", "--threads", "--device"});
  command.footer(
      "Examples:\n"
      "  attnres study --list\n"
      "  attnres study block-size --data book.txt --out studies/block-size --dry-run\n"
      "  attnres study block-size --data book.txt --out studies/block-size --stop-after 2h\n"
      "  attnres study recipes/studies/overhead.json --only 'residual-*' 'full-*'");
  command.callback([options, seeds] {
    if (seeds->count() > 0) options->grid.seeds = options->seeds;
    run_study_command(*options);
  });
}

}  // namespace attnres
