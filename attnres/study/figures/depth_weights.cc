#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/report/run_figures.h"
#include "attnres/study/study_figures.h"

namespace attnres {
namespace {

constexpr size_t kStages = 6;         // of training, in small multiples
constexpr double kSinkFactor = 2;     // times its even share
constexpr size_t kSourcesToSink = 4;  // a site with fewer can hardly give one twice its share

struct WeightRun {
  std::string label;
  const RunData* run = nullptr;
};

// Where the depth weights of a model lie, over the sites that have two sources or more.
struct WeightNumbers {
  double newest = 0;           // mean weight of the newest source
  double newest_has_most = 0;  // share of sites where it has the most weight
  double embedding = 0;        // mean weight of source 0
  std::vector<size_t> sinks;   // sources with kSinkFactor times their even share at most sites
};

WeightNumbers weigh(const SiteValues& weights) {
  WeightNumbers numbers;
  std::vector<size_t> seen, held;  // of each source, but for the newest of a site
  double sites = 0;
  for (const auto& [site, w] : weights) {
    if (w.size() < 2) continue;
    ++sites;
    numbers.newest += w.back();
    numbers.embedding += w.front();
    numbers.newest_has_most += std::max_element(w.begin(), w.end()) == w.end() - 1;
    seen.resize(std::max(seen.size(), w.size()));
    held.resize(seen.size());
    if (w.size() < kSourcesToSink) continue;
    for (size_t source = 0; source + 1 < w.size(); ++source) {
      ++seen[source];
      held[source] += w[source] * static_cast<double>(w.size()) >= kSinkFactor;
    }
  }
  for (double* sum : {&numbers.newest, &numbers.embedding, &numbers.newest_has_most}) {
    *sum = sites > 0 ? *sum / sites : kNotMeasured;
  }
  for (size_t source = 0; source < seen.size(); ++source) {
    if (seen[source] >= 2 && 2 * held[source] > seen[source]) numbers.sinks.push_back(source);
  }
  return numbers;
}

std::string sinks_cell(const std::vector<size_t>& sinks) {
  std::string out;
  for (const size_t source : sinks) {
    out += (out.empty() ? "" : ", ") + (source == 0 ? "embedding" : std::to_string(source));
  }
  return out.empty() ? "none" : out;
}

std::string weight_table(const std::vector<WeightRun>& runs) {
  std::vector<std::string> headings;
  std::vector<TableColumn> columns = {
      {"sinks", {}}, {"newest source", {}}, {"newest has most", {}}, {"embedding", {}}};
  for (const WeightRun& run : runs) {
    const WeightNumbers numbers = weigh(last_probe(*run.run, "depth_weights").sites);
    headings.push_back(row_heading(run.label));
    columns[0].cells.push_back(sinks_cell(numbers.sinks));
    columns[1].cells.push_back(fmt::format("{:.3f}", numbers.newest));
    columns[2].cells.push_back(fmt::format("{:.0f} %", 100 * numbers.newest_has_most));
    columns[3].cells.push_back(fmt::format("{:.3f}", numbers.embedding));
  }
  return numbers_table("arm", headings, columns) +
         how_to_read(fmt::format(
             "Mean weights over the sites with two sources or more. Newest source: what was "
             "computed last, the diagonal; newest has most: the share of sites that give it the "
             "most. "
             "Sinks: earlier sources with at least {} times their even share at most of the "
             "sites with {} sources or more.",
             kSinkFactor, kSourcesToSink));
}

// All sites at one step: rows are sites, columns sources.
HeatMap stage_map(const SiteValues& sites) {
  HeatMap map{.small = true};
  size_t columns = 0;
  for (const auto& [site, weights] : sites) columns = std::max(columns, weights.size());
  for (const auto& [site, weights] : sites) {
    std::vector<double>& row = map.values.emplace_back(weights);
    row.resize(columns, kNotMeasured);
    if (weights.size() < 2) row[0] = kNotMeasured;
  }
  map.row_names.resize(map.values.size());
  map.column_names.resize(columns);
  return map;
}

std::vector<int64_t> training_stages(const RunData& run) {
  std::vector<int64_t> steps, chosen;
  const size_t sites = last_probe(run, "depth_weights").sites.size();
  for (const auto& [step, values] : run.probes.at("depth_weights")) {
    if (values.size() == sites) steps.push_back(step);
  }
  if (steps.size() <= kStages) return steps;
  for (size_t i = 0; i < kStages; ++i) {
    chosen.push_back(steps[i * (steps.size() - 1) / (kStages - 1)]);
  }
  return chosen;
}

std::string forming(const WeightRun& run, const std::string& id) {
  const auto& probe = run.run->probes.at("depth_weights");
  std::vector<HeatMap> maps;
  const std::vector<int64_t> steps = training_stages(*run.run);
  const size_t sites = last_probe(*run.run, "depth_weights").sites.size();
  if (!fits_heat_map(sites, /*columns=*/0)) return "";
  double low = 0, high = 0;
  for (const int64_t step : steps) {
    for (const std::vector<double>& row : maps.emplace_back(stage_map(probe.at(step))).values) {
      for (const double weight : row) {
        if (!std::isfinite(weight)) continue;
        low = std::min(low, weight);
        high = std::max(high, weight);
      }
    }
  }
  if (high <= 0) return "";
  std::string panels;
  for (size_t i = 0; i < maps.size(); ++i) {
    maps[i].alt = fmt::format("Depth weights of {} at step {}", run.label, steps[i]);
    maps[i].low = low < 0 ? -std::max(-low, high) : 0;
    maps[i].high = low < 0 ? std::max(-low, high) : high;
    panels += figure(fmt::format("step {}", format_whole(steps[i])),
                     draw(maps[i], fmt::format("{}-{}", id, i)));
  }
  return fmt::format(
             "<h3><bdi>{}</bdi> <small>over training</small></h3>\n"
             "<div class=\"small\">\n{}</div>\n",
             escape_html(run.label), panels) +
         how_to_read(
             fmt::format("Rows: sites, from the first to the output. Columns: sources, from "
                         "the embedding on. Weight {}",
                         heat_legend(maps[0].low, maps[0].high)));
}

}  // namespace

StudyFigure depth_weights_figure(const StudyData& data, const std::string& id) {
  std::vector<WeightRun> shown;
  std::vector<RunData> runs;
  std::vector<std::string> missing;
  for (const size_t arm : data.shown_arms()) {
    const auto run = data.shown_run(arm);
    const std::string& label = data.arms.arms[arm].label;
    if (last_probe(*data.runs[*run], "depth_weights").sites.empty()) {
      missing.push_back(label);
      continue;
    }
    shown.push_back({label, &*data.runs[*run]});
    runs.push_back(*data.runs[*run]);
    runs.back().label = label;
  }
  const std::string left = left_out(missing, "no depth weights in its probes");
  if (shown.empty()) return {nothing("No run has depth weights in its probes.")};
  std::string out = of_shown_arms(data) + weight_table(shown) + depth_weight_figures(runs);
  for (size_t i = 0; i < shown.size(); ++i) {
    out += forming(shown[i], fmt::format("{}-{}", id, i));
  }
  return {out + left};
}

}  // namespace attnres
