#include "attnres/study/report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "attnres/study/figures.h"
#include "attnres/study/html.h"
#include "attnres/study/plot.h"
#include "attnres/study/style.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr const char* kNone = "–";

std::string or_none(bool known, const std::string& text) {
  return known ? text : kNone;
}

std::string section(const char* id, const char* title, const std::string& body) {
  return fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", id, title, body);
}

std::string list(const char* title, const std::vector<std::string>& items) {
  if (items.empty()) return "";
  std::string out = fmt::format("<aside><h2>{}</h2><ul>", title);
  for (const std::string& item : items) out += "<li>" + escape_html(item) + "</li>";
  return out + "</ul></aside>\n";
}

std::string run_heading(size_t index, const std::string& label) {
  return fmt::format("<th scope=\"row\"><span class=\"run\">{}<bdi>{}</bdi></span></th>",
                     legend_swatch(line_style(index)), escape_html(label));
}

std::string summary_table(const Comparison& c) {
  std::string out =
      "<div class=\"wide\"><table class=\"numbers\">\n<thead><tr><th>run</th><th>mechanism</th>"
      "<th>parameters</th><th>best validation loss</th><th>at step</th><th>final validation "
      "loss</th>";
  if (c.residual) out += "<th>against residual</th>";
  out += "<th>tokens/s</th>";
  if (c.residual) out += "<th>speed against residual</th>";
  out += "<th>time</th><th>tokens</th></tr></thead>\n<tbody>\n";
  for (size_t i = 0; i < c.runs.size(); ++i) {
    const RunSummary& run = c.runs[i];
    const bool has_val = !std::isnan(run.best_val_loss);
    const auto cell = [&](bool known, const std::string& text) {
      out += "<td>" + or_none(known, text) + "</td>";
    };
    out += c.best == i && c.runs.size() > 1 ? "<tr class=\"best\">" : "<tr>";
    out += run_heading(i, run.label);
    out += "<td class=\"text\">" + or_none(!run.mechanism.empty(), escape_html(run.mechanism)) +
           "</td>";
    cell(run.parameters >= 0, format_whole(run.parameters));
    cell(has_val, format_loss(run.best_val_loss));
    cell(has_val, format_whole(run.best_val_step));
    cell(has_val, format_loss(run.final_val_loss));
    if (c.residual) cell(!std::isnan(run.loss_difference), format_loss(run.loss_difference, true));
    const bool has_speed = !std::isnan(run.tokens_per_second);
    cell(has_speed, has_speed ? format_whole(std::llround(run.tokens_per_second)) : "");
    if (c.residual) cell(!std::isnan(run.speed_ratio), fmt::format("{:.2f} ×", run.speed_ratio));
    cell(!std::isnan(run.seconds), format_duration(run.seconds));
    cell(!std::isnan(run.tokens), format_count(run.tokens));
    out += "</tr>\n";
  }
  return out +
         "</tbody></table></div>\n<p class=\"key\">Losses in nats per token. Tokens/s: median over "
         "the second half of the logged steps. Time: training alone, without evaluation.</p>\n";
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

using Settings = std::map<std::string, std::string>;  // dotted key -> value as JSON

// The leaves of `json` by their dotted keys; `order` gets each key when it is first met.
void flatten(const Json& json, const std::string& key, Settings& out,
             std::vector<std::string>& order) {
  if (json.is_object() && !json.empty()) {
    for (const auto& [name, value] : json.items()) {
      flatten(value, key.empty() ? name : fmt::format("{}.{}", key, name), out, order);
    }
    return;
  }
  if (std::find(order.begin(), order.end(), key) == order.end()) order.push_back(key);
  out[key] = json.is_string() ? json.get<std::string>() : json.dump();
}

// A table of settings, one column per run; of all of them, or only of those that differ.
std::string settings_table(const std::vector<RunData>& runs,
                           const std::vector<const char*>& pointers, bool only_differences) {
  std::vector<std::string> keys;
  std::vector<Settings> settings(runs.size());
  for (const char* pointer : pointers) {
    for (size_t i = 0; i < runs.size(); ++i) {
      const Json* part = find(runs[i].record, pointer);
      const std::string_view name = std::string_view(pointer).substr(1);
      if (part) flatten(*part, only_differences ? "" : std::string(name), settings[i], keys);
    }
  }
  std::string rows;
  for (const std::string& key : keys) {
    bool same = true;
    std::string row = "<tr><th scope=\"row\"><code>" + escape_html(key) + "</code></th>";
    for (const Settings& run : settings) {
      const auto found = run.find(key);
      const auto first = settings.front().find(key);
      const bool here = found != run.end(), there = first != settings.front().end();
      same = same && here == there && (!here || found->second == first->second);
      row += "<td>" + or_none(here, here ? escape_html(found->second) : "") + "</td>";
    }
    if (!same || !only_differences) rows += row + "</tr>\n";
  }
  if (rows.empty()) return "";
  std::string head = "<tr><td></td>";
  for (const RunData& run : runs) {
    head += "<th scope=\"col\"><bdi>" + escape_html(run.label) + "</bdi></th>";
  }
  return "<div class=\"wide\"><table class=\"settings\">\n<thead>" + head +
         "</tr></thead>\n<tbody>\n" + rows + "</tbody></table></div>\n";
}

std::string configuration(const std::vector<RunData>& runs) {
  std::string out;
  if (runs.size() > 1) {
    const std::string table = settings_table(runs, {"/recipe"}, true);
    out = table.empty() ? "<p>The recipes are equal.</p>\n" : "<h3>What differs</h3>\n" + table;
  }
  for (const RunData& run : runs) {
    const Json* recipe = find(run.record, "/recipe");
    out += fmt::format(
        "<details><summary>Recipe of <bdi>{}</bdi></summary>\n<pre>{}</pre></details>\n",
        escape_html(run.label), recipe ? escape_html(recipe->dump(2)) : "none in run.json");
  }
  return out;
}

std::string provenance(const std::vector<RunData>& runs) {
  const std::string table = settings_table(runs, {"/data", "/build", "/machine"}, false);
  std::string folders = "<p class=\"key\">Read from ";
  for (size_t i = 0; i < runs.size(); ++i) {
    folders += fmt::format("{}<code>{}</code>", i ? ", " : "", escape_html(runs[i].path.string()));
  }
  return (table.empty() ? "<p class=\"missing\">run.json names no data, build or machine.</p>\n"
                        : table) +
         folders + ".</p>\n";
}

std::string page(const std::vector<RunData>& runs, const ReportSummary& summary) {
  const Comparison& c = summary.comparison;
  const std::string title = runs.size() == 1 ? "<bdi>" + escape_html(runs[0].label) + "</bdi>"
                                             : fmt::format("{} runs compared", runs.size());
  const std::string expert_loads = expert_load_figures(runs);
  std::string plain_title = "attnres report:";
  for (size_t i = 0; i < runs.size(); ++i) plain_title += (i ? ", " : " ") + runs[i].label;
  return fmt::format(
             "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
             "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
             "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n"
             "<header>\n<h1>{}</h1>\n<p class=\"verdict\">{}</p>\n</header>\n<main>\n",
             escape_html(plain_title), kStyle, title, escape_html(c.verdict)) +
         list("Read with care", c.cautions) + list("Missing", summary.notes) +
         section("summary", "Summary", summary_table(c)) +
         section("loss", "Loss", loss_figures(runs, c.residual)) +
         section("depth-weights", "Depth weights", depth_weight_figures(runs)) +
         section("magnitudes", "Magnitudes over depth", magnitude_figures(runs)) +
         section("entropy", "Depth entropy", entropy_figure(runs)) +
         (expert_loads.empty() ? "" : section("expert-load", "Load of experts", expert_loads)) +
         section("samples", "Samples", samples(runs)) +
         section("configuration", "Configuration", configuration(runs)) +
         section("provenance", "Data, build, machine", provenance(runs)) +
         "</main>\n</body>\n</html>\n";
}

}  // namespace

ReportSummary write_report(const std::vector<fs::path>& paths, const ReportOptions& options) {
  const std::vector<RunData> runs = read_runs(paths);
  ReportSummary summary{.page = options.out, .comparison = compare(runs)};
  for (const RunData& run : runs) {
    for (const std::string& note : run.notes) summary.notes.push_back(run.label + ": " + note);
  }
  const std::string text = page(runs, summary);
  if (options.out.has_parent_path()) make_folder(options.out.parent_path());
  write_file(options.out, text);
  return summary;
}

}  // namespace attnres
