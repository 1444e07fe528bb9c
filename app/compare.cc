// The compare subcommand.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/options.h"
#include "app/study_shown.h"
#include "attnres/data/corpus.h"
#include "attnres/study/quick_study.h"
#include "attnres/study/study.h"
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
  bool smoke = false, dry_run = false, json = false;

  // What was chosen, as a study's file, so that the same command goes on with it.
  fs::path file() const { return folder() / "compare.json"; }
  // What is tiny does not lie where the real runs will.
  fs::path folder() const {
    return !out.empty() ? fs::path(out)
                        : fs::path("studies") / (smoke ? "compare-smoke" : "compare");
  }
  std::vector<fs::path> texts() const { return {data.begin(), data.end()}; }
};

// On standard output, unless that is for a program.
void say(const CompareOptions& options, const std::string& text) {
  const std::string lines = wrapped(text, text_columns()) + "\n";
  std::fputs(lines.c_str(), options.json ? stderr : stdout);
}

// Tokens to train on, which are bytes.
int64_t text_tokens(const CompareOptions& options) {
  const Corpus corpus = without_duplicates(
      read_corpus(options.data.empty() ? default_corpus_paths() : options.texts()));
  const double trained = 1 - DataConfig().validation_fraction;
  return static_cast<int64_t>(trained * static_cast<double>(corpus.bytes));
}

void explain_choice(const CompareOptions& options, const QuickAims& aims,
                    const QuickChoice& choice) {
  const auto tokens = static_cast<double>(choice.tokens);
  const int64_t width = choice.base.at("model").at("width");
  say(options,
      fmt::format("{} of a model with 8 Transformer layers of width {} and {} parameters: {} "
                  "tokens each, which are {:.1f} a parameter and {:.1f} passes over the text, in "
                  "about {} for all on this machine. {}",
                  counted(std::ssize(aims.mechanisms) * aims.seeds, "run"), width,
                  format_count(static_cast<double>(choice.parameters)), format_count(tokens),
                  tokens / static_cast<double>(choice.parameters),
                  tokens / static_cast<double>(aims.text_tokens), format_duration(choice.seconds),
                  choice.why));
}

StudyRecipe begin_comparison(const CompareOptions& options) {
  QuickAims aims = {.mechanisms = options.mechanisms,
                    .seeds = options.seeds > 0 ? options.seeds : kDefaultSeeds,
                    .seconds = options.seconds > 0 ? options.seconds : kDefaultSeconds};
  if (aims.mechanisms.empty()) aims.mechanisms = {"residual", "block_attn_res", "attn_res"};
  require_mechanisms(aims.mechanisms);
  aims.text_tokens = text_tokens(options);
  const int jobs = static_cast<int>(options.jobs);
  const int threads = std::max(describe_machine().cores / jobs, 1);
  aims.jobs = runs_side_by_side(jobs, threads);
  const QuickChoice choice = choose_quick_study(
      aims, {.matmul = measure_matmul(threads), .copy = measure_copy(threads) * 1e9});
  if (!options.smoke) explain_choice(options, aims, choice);
  return quick_study(choice.base, aims.mechanisms, aims.seeds);
}

// With other mechanisms or seeds where they are given: runs that are there stay what they are.
StudyRecipe take_up_comparison(const CompareOptions& options) {
  const StudyRecipe before = read_study(options.file());
  const std::vector<std::string> mechanisms =
      options.mechanisms.empty() ? mechanisms_of(before) : options.mechanisms;
  require_mechanisms(mechanisms);
  say(options,
      fmt::format("{}: goes on with the model that was chosen before{}", options.folder().string(),
                  options.seconds > 0 ? "; for other --hours choose another --out" : ""));
  return quick_study(parse_json(before.base, options.file().string()), mechanisms,
                     options.seeds > 0 ? options.seeds : before.seeds);
}

void run_compare(const CompareOptions& options) {
  StudyJob job;
  job.study = path_exists(options.file()) ? take_up_comparison(options) : begin_comparison(options);
  job.grid.smoke = options.smoke;
  if (options.seeds > 0) job.grid.seeds = options.seeds;
  job.data = options.texts();
  job.out = options.folder();
  job.jobs = static_cast<int>(options.jobs);
  if (options.dry_run) return print_plan(job);
  look_ahead(job);  // refuses what does not belong together before anything is written
  make_folder(job.out);
  write_file(options.file(), quick_study_json(job.study).dump(2) + "\n");
  show_study(job, options.json);
}

}  // namespace

void add_compare_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "compare",
      "Compare mechanisms on your own text. Chooses a model that this machine trains in the time\n"
      "given, trains it with each mechanism and seed, and writes a page. Its folder is a study's,\n"
      "and the same command goes on where it stopped.");
  const auto options = std::make_shared<CompareOptions>();
  as_path(command->add_option("--data", options->data,
                              "files and folders of text; the compiler's C and C++ headers if not "
                              "given"))
      ->type_name("PATH");
  command
      ->add_option("--mechanisms", options->mechanisms,
                   "what to compare, separated by commas; residual,block_attn_res,attn_res if not\n"
                   "given. attnres mechanisms lists all")
      ->delimiter(',')
      ->transform(without_blanks())
      ->type_name("NAME,...");
  command
      ->add_option("--seeds", options->seeds,
                   "runs of each mechanism, which are compared in pairs; 3 if not given")
      ->type_name("N")
      ->check(whole_number(1, 1000));
  command
      ->add_option("--hours", options->seconds,
                   "the time that all runs together may take, in hours or as 90m; 1 if not given")
      ->type_name("TIME")
      ->transform(duration(kLeastSeconds, kMostSeconds, 'h'));
  as_path(command->add_option("--out", options->out,
                              "the folder; studies/compare, or studies/compare-smoke with --smoke, "
                              "if not given"))
      ->type_name("DIR");
  command->add_option("--jobs", options->jobs, "runs at once, which divide the cores among them")
      ->type_name("N")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  command->add_flag("--smoke", options->smoke,
                    "every run tiny, and one seed, to see in a minute whether all of them work");
  command->add_flag("--dry-run", options->dry_run,
                    "show what is chosen and what the runs take; write nothing");
  command->add_flag("--json", options->json, "print study.json");
  command->footer(
      "Examples:\n"
      "  attnres compare --data book.txt --dry-run\n"
      "  attnres compare --data book.txt --hours 8 --out studies/book\n"
      "  attnres compare --data book.txt --mechanisms residual,mhc,dense_former --seeds 5");
  command->callback([options] { run_compare(*options); });
}

}  // namespace attnres
