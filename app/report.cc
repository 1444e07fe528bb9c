// The report subcommand.
#include "attnres/report/report.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/commands.h"
#include "app/options.h"
#include "attnres/report/arm_table.h"
#include "attnres/report/metrics_table.h"
#include "attnres/study/study_data.h"
#include "attnres/study/study_page.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/json.h"
#include "attnres/support/terminal.h"

namespace attnres {
namespace {

struct ReportCommandOptions {
  std::vector<std::string> runs;
  std::string out, csv;
  std::vector<std::string> notes;
  bool json = false;

  // Then nothing else is on standard output.
  bool csv_is_printed() const { return csv == "-"; }
};

Json as_json(const RunSummary& run) {
  return {{"name", run.label},
          {"mechanism", run.mechanism},
          {"seed", run.seed ? Json(*run.seed) : Json()},
          {"parameters", run.parameters},
          {"final_val_loss", number_or_null(run.final_val_loss)},
          {"final_val_step", run.final_val_step},
          {"best_val_loss", number_or_null(run.best_val_loss)},
          {"best_val_step", run.best_val_step},
          {"diverged_at", run.diverged_at ? Json(*run.diverged_at) : Json()},
          {"tokens_per_second", number_or_null(run.speed.tokens_per_second)},
          {"speed_well_measured", run.speed.well_measured()},
          {"seconds", number_or_null(run.seconds)},
          {"tokens", number_or_null(run.tokens)},
          {"loss_difference", number_or_null(run.loss_difference)},
          {"speed_ratio", number_or_null(run.speed_ratio)}};
}

Json as_json(const Arm& arm, bool is_baseline) {
  const ArmDifference& difference = arm.difference;
  const auto& test = difference.test;
  return {{"name", arm.label},
          {"baseline", is_baseline},
          {"seeds", arm.losses.size()},
          {"mean_loss", number_or_null(arm.mean_loss())},
          {"loss_deviation", number_or_null(arm.loss_deviation())},
          {"pairs", difference.pairs},
          {"mean_difference", number_or_null(difference.mean)},
          {"interval", test ? Json{test->interval.low, test->interval.high} : Json()},
          {"p_value", test ? Json(test->p_value) : Json()},
          {"p_value_holm", number_or_null(difference.p_value)},
          {"verdict", difference.verdict},
          {"seeds_to_tell", difference.pairs_to_tell ? Json(*difference.pairs_to_tell) : Json()}};
}

Json arms_as_json(const Comparison& c) {
  Json arms = Json::array();
  for (size_t i = 0; i < c.arms.size(); ++i) arms.push_back(as_json(c.arms[i], i == c.baseline));
  return arms;
}

constexpr size_t kGap = 2;  // between columns

size_t width_of(const TableColumn& column) {
  size_t width = characters(column.name);
  for (const std::string& cell : column.cells) width = std::max(width, characters(cell));
  return width;
}

// Leaves out columns until the others fit the terminal: those first that say least. The page and
// --json have all of them.
void fit(std::vector<TableColumn>& columns) {
  const std::string seeds_to_tell = fmt::format("seeds for {}", kDifferenceToTell);
  for (const std::string& least :
       {seeds_to_tell, std::string("sd"), std::string("seeds"), std::string("verdict"),
        std::string("mean loss"), std::string("p-value")}) {
    size_t width = 0;
    for (const TableColumn& column : columns) width += width_of(column) + kGap;
    if (width - kGap <= text_columns()) return;
    std::erase_if(columns, [&](const TableColumn& column) { return column.name == least; });
  }
}

void print_arms(const std::vector<Arm>& arms) {
  std::vector<TableColumn> columns = arm_columns(arms);
  TableColumn& names = *columns.insert(columns.begin(), TableColumn{"arm", {}, true});
  for (const Arm& arm : arms) names.cells.push_back(one_line(arm.label));
  fit(columns);
  std::vector<std::string> lines(arms.size() + 1);
  for (const TableColumn& column : columns) {
    const size_t width = width_of(column);
    const std::string gap(lines[0].empty() ? 0 : kGap, ' ');
    for (size_t i = 0; i < lines.size(); ++i) {
      const std::string& text = i == 0 ? column.name : column.cells[i - 1];
      const std::string spaces(width - characters(text), ' ');
      lines[i].append(gap);
      lines[i].append(column.is_words ? text : spaces).append(column.is_words ? spaces : text);
    }
  }
  for (const std::string& line : lines) fmt::print("{}\n", line);
}

bool is_study(const ReportCommandOptions& options) {
  const auto count = std::count_if(options.runs.begin(), options.runs.end(),
                                   [](const std::string& path) { return is_study_folder(path); });
  require_usage(count == 0 || options.runs.size() == 1,
                "report: the folder of a study has a page of its own; give it alone, or give run "
                "folders of it (STUDY/runs/NAME)");
  return count == 1;
}

// As lines of the terminal, whatever the names in it are.
void print_lines(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, ' ');
  print_wrapped(text);
}

bool has_several_tests(const std::vector<Arm>& arms) {
  return std::count_if(arms.begin(), arms.end(),
                       [](const Arm& arm) { return arm.difference.test.has_value(); }) > 1;
}

void report_study(const ReportCommandOptions& options) {
  const StudyPage page = write_study_page(options.runs.front(), options.out);
  for (const std::string& note : page.notes) fmt::print(stderr, "note: {}\n", note);
  if (options.json) {
    Json arms = Json::array();
    for (const Arm& arm : page.arms) {
      arms.push_back(as_json(arm, arm.difference.verdict == "baseline"));
    }
    fmt::print("{}\n", Json{{"page", page.page.string()},
                            {"progress", page.progress},
                            {"findings", page.findings},
                            {"sentences", page.sentences},
                            {"costs", page.costs},
                            {"arms", arms},
                            {"difference_to_tell", kDifferenceToTell}}
                           .dump());
    return;
  }
  if (options.csv_is_printed()) {
    fmt::print(stderr, "report: {}\n", page.page.string());
    return;
  }
  fmt::print("{}\n", page.progress);
  for (const std::string& finding : page.findings) print_lines(finding);
  if (page.sentences.size() > kMostSentences) {
    print_arms(page.arms);
  } else {
    for (const std::string& sentence : page.sentences) print_lines(sentence);
  }
  for (const std::string& cost : page.costs) print_lines(cost);
  if (has_several_tests(page.arms)) {
    print_lines(
        "Intervals are of each arm alone; p is corrected (Holm) for all arms of the study.");
  }
  fmt::print("report: {}\n", page.page.string());
}

// Takes the runs of a study that have begun.
void write_metrics(const ReportCommandOptions& options, bool of_study) {
  std::vector<std::filesystem::path> runs(options.runs.begin(), options.runs.end());
  if (of_study) {
    runs.clear();
    const StudyData data = read_study_data(options.runs.front());
    for (const std::optional<RunData>& run : data.runs) {
      if (run) runs.push_back(run->path);
    }
  }
  const MetricsTable table = metrics_table(runs);
  for (const std::string& note : table.notes) fmt::print(stderr, "note: {}\n", note);
  if (options.csv_is_printed()) {
    fmt::print("{}", table.csv);
  } else {
    rewrite_file(options.csv, table.csv);
  }
}

void run_report(const ReportCommandOptions& options) {
  require_usage(
      !options.csv_is_printed() || !options.json,
      "--csv - and --json both print on standard output; name a file for one, --csv FILE");
  for (const std::string& run : options.runs) {
    require_no_part_of_study(run);
    require_trained(run);
  }
  const bool of_study = is_study(options);
  if (!options.csv.empty()) write_metrics(options, of_study);
  require_usage(!of_study || options.notes.empty(),
                "--note: is for a page of runs; the page of a study says what its study.json says");
  if (of_study) return report_study(options);
  ReportOptions page;
  if (!options.out.empty()) page.out = options.out;
  page.cautions = options.notes;
  const ReportSummary summary = write_report({options.runs.begin(), options.runs.end()}, page);
  for (const std::string& note : summary.notes) fmt::print(stderr, "note: {}\n", note);
  if (options.json) {
    Json runs = Json::array();
    for (const RunSummary& run : summary.comparison.runs) runs.push_back(as_json(run));
    fmt::print("{}\n", Json{{"page", summary.page.string()},
                            {"verdict", summary.comparison.verdict},
                            {"incomparable", summary.comparison.incomparable},
                            {"cautions", summary.comparison.cautions},
                            {"arms", arms_as_json(summary.comparison)},
                            {"difference_to_tell", kDifferenceToTell},
                            {"runs", runs}}
                           .dump());
    return;
  }
  if (options.csv_is_printed()) {
    fmt::print(stderr, "report: {}\n", summary.page.string());
    return;
  }
  print_lines(summary.comparison.verdict);
  if (has_seeds(summary.comparison)) print_arms(summary.comparison.arms);
  fmt::print("report: {}\n", summary.page.string());
}

}  // namespace

void add_report_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "report",
      "Compare runs on one HTML page. It holds losses, speed, depth weights, magnitudes, samples\n"
      "and configurations. Runs that differ in their seed alone are taken together, and tell by\n"
      "pairs of equal seeds whether a difference is within noise. Of a study's folder, it is the\n"
      "study's page.");
  const auto options = std::make_shared<ReportCommandOptions>();
  add_path(command, "runs RUN", options->runs, "run folders, or the folder of one study")
      ->required();
  add_path(command, "--out FILE", options->out,
           "the page (default: report.html, of a study the one in its folder)");
  add_path(command, "--csv FILE", options->csv,
           "also write all that the runs measured, a line for each step, for a spreadsheet; - for "
           "standard output, with nothing else there");
  add_option(command, "--note TEXT", options->notes,
             "a sentence for the page's box \"Read with care\"; may be given several times");
  command.add_flag("--json", options->json, "print the figures as JSON");
  command.footer(
      "Examples:\n"
      "  attnres report runs/residual runs/block --out report.html\n"
      "  attnres report studies/block-size");
  command.callback([options] { run_report(*options); });
}

}  // namespace attnres
