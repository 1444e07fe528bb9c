#include "attnres/report/report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/plots/plot.h"
#include "attnres/report/arm_table.h"
#include "attnres/report/run_figures.h"
#include "attnres/report/settings.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

std::string or_none(bool known, const std::string& text) {
  return known ? text : kNoValue;
}

std::string run_heading(size_t index, const std::string& label) {
  return fmt::format("<th scope=\"row\"><span class=\"run\">{}<bdi>{}</bdi></span></th>",
                     legend_swatch(line_style(index)), escape_html(label));
}

std::vector<TableColumn> summary_columns(const std::vector<RunSummary>& runs) {
  std::vector<TableColumn> columns;
  const auto column = [&](const char* name, auto known, auto text) {
    TableColumn& added = columns.emplace_back(TableColumn{name, {}});
    for (const RunSummary& run : runs) added.cells.push_back(known(run) ? text(run) : kNoValue);
  };
  // Only where a run has it.
  const auto optional_column = [&](const char* name, auto known, auto text) {
    if (std::any_of(runs.begin(), runs.end(), known)) column(name, known, text);
  };
  const auto measured = [](double RunSummary::*value) {
    return [value](const RunSummary& run) { return !std::isnan(run.*value); };
  };
  using Run = const RunSummary&;
  column(
      "mechanism", [](Run run) { return !run.mechanism.empty(); },
      [](Run run) { return escape_html(run.mechanism); });
  columns.back().is_words = true;
  optional_column(
      "seed", [](Run run) { return run.seed.has_value(); },
      [](Run run) { return std::to_string(*run.seed); });
  column(
      "parameters", [](Run run) { return run.parameters >= 0; },
      [](Run run) { return format_whole(run.parameters); });
  optional_column(
      "diverged at step", [](Run run) { return run.diverged_at.has_value(); },
      [](Run run) { return format_whole(*run.diverged_at); });
  column("final validation loss", measured(&RunSummary::final_val_loss),
         [](Run run) { return format_loss(run.final_val_loss); });
  optional_column("against residual", measured(&RunSummary::loss_difference),
                  [](Run run) { return format_loss(run.loss_difference, true); });
  column("best (at step)", measured(&RunSummary::best_val_loss), [](Run run) {
    return fmt::format("{} ({})", format_loss(run.best_val_loss), format_whole(run.best_val_step));
  });
  column(
      "tokens/s", [](Run run) { return !std::isnan(run.speed.tokens_per_second); },
      [](Run run) {
        return (run.speed.well_measured() ? "" : "≈ ") +
               format_whole(std::llround(run.speed.tokens_per_second));
      });
  optional_column("speed against residual", measured(&RunSummary::speed_ratio),
                  [](Run run) { return fmt::format("{:.2f} ×", run.speed_ratio); });
  column("time", measured(&RunSummary::seconds),
         [](Run run) { return format_duration(run.seconds); });
  column("tokens", measured(&RunSummary::tokens), [](Run run) { return format_count(run.tokens); });
  return columns;
}

std::string summary_table(const Comparison& c) {
  std::vector<bool> best(c.runs.size());
  if (c.best && c.arms.size() > 1) {
    for (size_t run : c.arms[*c.best].runs) best[run] = true;
  }
  std::vector<std::string> headings;
  for (size_t i = 0; i < c.runs.size(); ++i) headings.push_back(run_heading(i, c.runs[i].label));
  return numbers_table("run", headings, summary_columns(c.runs), best);
}

std::string arm_section(const Comparison& c) {
  if (!has_seeds(c)) return "";
  std::vector<bool> best(c.arms.size());
  if (c.best && c.arms.size() > 1) best[*c.best] = true;
  std::vector<std::string> headings;
  for (const Arm& arm : c.arms) {
    headings.push_back(row_heading(arm.label));
  }
  return section("arms", "Arms",
                 numbers_table("arm", headings, escaped(arm_columns(c.arms)), best) +
                     how_to_read(escape_html(arm_table_key(c))));
}

std::string summary(const Comparison& c) {
  const char* against =
      c.residual && c.incomparable.empty()
          ? "Against residual: minus the residual run of the same seed, or else the first. "
          : "";
  return summary_table(c) +
         fmt::format(
             "<p class=\"key\">Losses in nats per token. Runs are compared by their final loss, "
             "since the lowest of many measurements would favour the run that was measured more "
             "often; runs that differ in their seed alone, by the mean difference over the seeds "
             "that both sides have. {}Tokens/s: median of ten intervals after the first tenth of "
             "the steps; ≈ where fewer than eight of them lie within 5 % of it, or too few steps "
             "were logged: no ratio is taken of those. Time: training alone, without "
             "evaluation.</p>\n",
             against);
}

// The text after a sample's prompt, with the prompt before it marked.
std::string sample_text(const Sample& sample) {
  const bool repeats = sample.text.starts_with(sample.prompt);
  const std::string_view rest =
      std::string_view(sample.text).substr(repeats ? sample.prompt.size() : 0);
  return fmt::format("<pre dir=\"auto\"><b>{}</b>{}</pre>", escape_html(sample.prompt),
                     escape_html(rest));
}

std::string samples(const std::vector<RunData>& runs) {
  std::string out, missing;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunData& run = runs[i];
    if (run.samples.empty()) {
      missing += (missing.empty() ? "" : ", ") + escape_html(run.label);
      continue;
    }
    const int64_t last = run.samples.back().step;
    out += fmt::format("<article><h3><bdi>{}</bdi> <small>step {}</small></h3>\n",
                       escape_html(run.label), format_whole(last));
    for (const Sample& sample : run.samples) {
      if (sample.step == last) out += sample_text(sample) + "\n";
    }
    out += "</article>\n";
  }
  if (out.empty()) return "<p class=\"missing\">No run has written samples.</p>\n";
  out = "<div class=\"pair\">\n" + out + "</div>\n<p class=\"key\">Prompts are bold.</p>\n";
  if (!missing.empty()) out += "<p class=\"missing\">No samples: " + missing + ".</p>\n";
  return out;
}

// One column per run; all settings, or only those that differ.
std::string settings_table(const std::vector<RunData>& runs, const SettingsTable& settings,
                           bool only_differences) {
  std::string rows;
  for (const std::string& key : settings.keys()) {
    if (only_differences && settings.equal(key)) continue;
    rows += "<tr><th scope=\"row\"><code>" + escape_html(key) + "</code></th>";
    for (size_t i = 0; i < runs.size(); ++i) {
      const std::string* value = settings.value(i, key);
      rows += "<td>" + or_none(value != nullptr, value ? escape_html(*value) : "") + "</td>";
    }
    rows += "</tr>\n";
  }
  if (rows.empty()) return "";
  std::string head = "<tr><td></td>";
  for (const RunData& run : runs) {
    head += "<th scope=\"col\"><bdi>" + escape_html(run.label) + "</bdi></th>";
  }
  return "<div class=\"wide\"><table class=\"settings\">\n<thead>" + head +
         "</tr></thead>\n<tbody>\n" + rows + "</tbody></table></div>\n";
}

// Parts of run.json, each under a prefix.
SettingsTable settings_of(const std::vector<RunData>& runs,
                          const std::vector<std::pair<const char*, const char*>>& parts) {
  SettingsTable settings(runs.size());
  for (const auto& [pointer, prefix] : parts) {
    for (size_t i = 0; i < runs.size(); ++i) {
      if (const Json* part = find(runs[i].record, pointer)) settings.add(i, prefix, *part);
    }
  }
  return settings;
}

// Everything that may set the runs apart but their machines, which have a table of their own.
std::string what_differs(const std::vector<RunData>& runs, const Comparison& c) {
  SettingsTable settings =
      settings_of(runs, {{"/recipe", ""}, {"/data", "data"}, {"/from", "from"}});
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!std::isnan(c.runs[i].tokens)) {
      settings.add(i, "tokens trained on", Json(std::llround(c.runs[i].tokens)));
    }
  }
  const std::string table = settings_table(runs, settings, true);
  return table.empty() ? "<p>The recipes are equal, and so are the data.</p>\n"
                       : "<h3>What differs</h3>\n" + table;
}

std::string configuration(const std::vector<RunData>& runs, const Comparison& c) {
  std::string out = runs.size() > 1 ? what_differs(runs, c) : "";
  for (const RunData& run : runs) {
    const Json* recipe = find(run.record, "/recipe");
    out += fmt::format(
        "<details><summary>Recipe of <bdi>{}</bdi></summary>\n<pre>{}</pre></details>\n",
        escape_html(run.label), recipe ? escape_html(recipe->dump(2)) : "none in run.json");
  }
  return out;
}

std::string provenance(const std::vector<RunData>& runs) {
  const std::string table = settings_table(
      runs,
      settings_of(
          runs,
          {{"/data", "data"}, {"/from", "from"}, {"/build", "build"}, {"/machine", "machine"}}),
      false);
  std::string folders = "<p class=\"key\">Read from ";
  for (size_t i = 0; i < runs.size(); ++i) {
    folders += fmt::format("{}<code>{}</code>", i ? ", " : "", escape_html(runs[i].path.string()));
  }
  return (table.empty() ? "<p class=\"missing\">run.json names no data, build or machine.</p>\n"
                        : table) +
         folders + ".</p>\n";
}

std::string page(const std::vector<RunData>& runs, const ReportSummary& report) {
  const Comparison& c = report.comparison;
  const std::string title = runs.size() == 1 ? "<bdi>" + escape_html(runs[0].label) + "</bdi>"
                                             : fmt::format("{} runs compared", runs.size());
  const std::string expert_loads = expert_load_figures(runs);
  const std::string schedules = schedule_figures(runs);
  std::string plain_title = "attnres report:";
  for (size_t i = 0; i < runs.size(); ++i) plain_title += (i ? ", " : " ") + runs[i].label;
  return page_start(plain_title, title,
                    "<p class=\"verdict\">" + escape_html(c.verdict) + "</p>\n") +
         boxed_list("Read with care", c.cautions) + boxed_list("Missing", report.notes) +
         arm_section(c) + section("summary", "Summary", summary(c)) +
         section("loss", "Loss", loss_figures(runs, c)) +
         section("depth-weights", "Depth weights", depth_weight_figures(runs)) +
         section("magnitudes", "Magnitudes over depth", magnitude_figures(runs)) +
         section("entropy", "Depth entropy", entropy_figure(runs)) +
         (expert_loads.empty() ? "" : section("expert-load", "Load of experts", expert_loads)) +
         (schedules.empty() ? "" : section("schedule", "Schedule of processes", schedules)) +
         section("samples", "Samples", samples(runs)) +
         section("configuration", "Configuration", configuration(runs, c)) +
         section("provenance", "Data, build, machine", provenance(runs)) + page_end();
}

}  // namespace

ReportSummary write_report(const std::vector<fs::path>& paths, const ReportOptions& options) {
  const std::vector<RunData> runs = read_runs(paths);
  ReportSummary summary{.page = options.out, .comparison = compare(runs)};
  std::vector<std::string>& cautions = summary.comparison.cautions;
  cautions.insert(cautions.begin(), options.cautions.begin(), options.cautions.end());
  for (const RunData& run : runs) {
    for (const std::string& note : run.notes) summary.notes.push_back(run.label + ": " + note);
  }
  const std::string text = page(runs, summary);
  if (options.out.has_parent_path()) make_folder(options.out.parent_path());
  rewrite_file(options.out, text);
  return summary;
}

}  // namespace attnres
