#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/study/seed_curves.h"
#include "attnres/study/study_figures.h"

namespace attnres {
namespace {

constexpr size_t kMoments = 5;

// One run of each arm that has begun.
struct DynamicsRun {
  std::string label;
  const RunData* run = nullptr;
};

std::vector<DynamicsRun> dynamics_runs(const StudyData& data) {
  std::vector<DynamicsRun> runs;
  for (const size_t arm : data.shown_arms()) {
    runs.push_back({data.arms.arms[arm].label, &*data.runs[*data.shown_run(arm)]});
  }
  return runs;
}

// Steps at which a probe saw all sites, about as far from each other as they are many.
std::vector<int64_t> probe_moments(const RunData& run, const char* probe, size_t most) {
  const auto found = run.probes.find(probe);
  if (found == run.probes.end()) return {};
  size_t sites = 0;
  for (const auto& [step, values] : found->second) sites = std::max(sites, values.size());
  std::vector<int64_t> steps;
  for (const auto& [step, values] : found->second) {
    if (values.size() == sites) steps.push_back(step);
  }
  if (steps.size() <= most) return steps;
  std::vector<int64_t> chosen;
  for (size_t i = 0; i < most; ++i) chosen.push_back(steps[i * (steps.size() - 1) / (most - 1)]);
  return chosen;
}

LineStyle moment_style(size_t moment, size_t moments) {
  const double share = moments < 2 ? 1 : static_cast<double>(moment) / double(moments - 1);
  return {.color = heat_color(0.3 + 0.7 * share, 0, 1), .marker = int(moment % 6), .dash = {}};
}

// At the feed-forward of each Transformer layer.
Curve layer_curve(const SiteValues& sites, const LineStyle& style) {
  Curve curve{.style = style};
  for (const auto& [site, values] : sites) {
    if (site % 2 == 0 || values.empty() || !std::isfinite(values[0])) continue;
    const int layer = (site + 1) / 2;
    curve.x.push_back(layer);
    curve.y.push_back(values[0]);
  }
  return curve;
}

struct LayerProbe {
  const char* name;
  const char* title;
  const char* y_label;
};

// A panel for each arm, on one scale.
std::string layer_panels(const std::vector<DynamicsRun>& runs, const LayerProbe& probe,
                         const std::string& id) {
  std::vector<LinePlot> plots;
  std::vector<size_t> shown;
  double low = INFINITY, high = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::vector<int64_t> steps = probe_moments(*runs[i].run, probe.name, kMoments);
    LinePlot plot{.alt = fmt::format("{}, {}", probe.title, runs[i].label),
                  .x_label = "Transformer layer",
                  .y_label = probe.y_label,
                  .whole_x = true};
    for (size_t moment = 0; moment < steps.size(); ++moment) {
      const SiteValues& sites = runs[i].run->probes.at(probe.name).at(steps[moment]);
      Curve curve = layer_curve(sites, moment_style(moment, steps.size()));
      for (const double y : curve.y) {
        high = std::max(high, y);
        if (y > 0) low = std::min(low, y);
      }
      if (!curve.x.empty()) plot.curves.push_back(std::move(curve));
    }
    if (plot.curves.empty()) continue;
    plots.push_back(std::move(plot));
    shown.push_back(i);
  }
  if (plots.empty() || high == 0) return "";
  const bool log = high > 20 * low;
  std::string panels;
  for (size_t p = 0; p < plots.size(); ++p) {
    plots[p].log_y = log;
    plots[p].y_low = log ? low / 1.2 : 0;
    plots[p].y_high = (log ? 1.2 : 1.06) * high;
    panels += figure("<bdi>" + escape_html(runs[shown[p]].label) + "</bdi>",
                     draw(plots[p], fmt::format("{}-{}-{}", id, probe.name, p)));
  }
  return fmt::format("<h3>{}</h3>\n", probe.title) + row_of(panels);
}

std::string moment_legend(const std::vector<DynamicsRun>& runs) {
  for (const DynamicsRun& run : runs) {
    const std::vector<int64_t> steps = probe_moments(*run.run, "output_rms", kMoments);
    std::vector<LegendEntry> entries;
    for (size_t i = 0; i < steps.size(); ++i) {
      entries.push_back(
          {moment_style(i, steps.size()), fmt::format("step {}", format_whole(steps[i]))});
    }
    if (!entries.empty()) return legend(entries);
  }
  return "";
}

}  // namespace

StudyFigure dynamics_figure(const StudyData& data, const std::string& id) {
  const std::vector<DynamicsRun> runs = dynamics_runs(data);
  if (runs.empty()) return {nothing("No run has begun yet.")};
  std::vector<LegendEntry> entries;
  for (size_t i = 0; i < runs.size(); ++i) entries.push_back({line_style(i), runs[i].label});
  std::string layers;
  for (const LayerProbe& probe :
       {LayerProbe{"output_rms", "Magnitude of feed-forward outputs", "RMS of the output"},
        LayerProbe{"state_rms", "Magnitude of the running state", "RMS of the state"},
        LayerProbe{"gradient_rms", "Magnitude of gradients", "RMS of the gradient"}}) {
    layers += layer_panels(runs, probe, id);
  }
  if (layers.empty()) {
    layers = nothing("No run has magnitudes in its probes.");
  } else {
    layers = moment_legend(runs) + layers +
             how_to_read(
                 "Running state: the residual stream, or the partial sum of the block. "
                 "Gradient: of the loss with respect to a layer’s feed-forward output.");
  }
  return {legend(entries) + seed_loss_figure(data, data.shown_arms(), id + "-loss") +
          of_shown_arms(data) + layers};
}

}  // namespace attnres
