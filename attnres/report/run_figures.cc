#include "attnres/report/run_figures.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/plots/plot.h"
#include "attnres/report/depth_entropy.h"
#include "attnres/report/loss_axes.h"

namespace attnres {
namespace {

// Which of the runs, by index, have each a swatch and a name.
std::string legend_of(const std::vector<RunData>& runs, const std::vector<size_t>& shown) {
  std::vector<LegendEntry> entries;
  for (size_t i : shown) entries.push_back({line_style(i), runs[i].label});
  return legend(entries);
}

// One quantity against another, at the steps where both were measured.
Points series(const RunData& run, double Metric::*x, double Metric::*y) {
  Points out;
  for (const Metric& metric : run.metrics) {
    if (std::isnan(metric.*x) || std::isnan(metric.*y)) continue;
    out.x.push_back(metric.*x);
    out.y.push_back(metric.*y);
  }
  return out;
}

// Mean over a window of a fortieth of the points around each.
std::vector<double> smooth(const std::vector<double>& y) {
  const size_t reach = y.size() / 80;
  std::vector<double> sums(y.size() + 1, 0);
  for (size_t i = 0; i < y.size(); ++i) sums[i + 1] = sums[i] + y[i];
  std::vector<double> out(y.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t side = std::min({reach, i, y.size() - 1 - i});
    out[i] = (sums[i + side + 1] - sums[i - side]) / double(2 * side + 1);
  }
  return out;
}

std::string loss_plot(const std::vector<RunData>& runs, double Metric::*x, const char* x_label,
                      void (*scale)(LinePlot&), const char* id, bool& cuts) {
  LinePlot plot{.alt = fmt::format("Loss against {}", x_label), .y_label = "loss (nats per token)"};
  LossRange range;
  for (size_t i = 0; i < runs.size(); ++i) {
    Points train = series(runs[i], x, &Metric::loss);
    Points validation = series(runs[i], x, &Metric::val_loss);
    train.y = smooth(train.y);
    for (const Points* points : {&train, &validation}) {
      if (points->x.empty()) continue;
      range.include(*points);
      plot.curves.push_back({points->x, points->y, line_style(i),
                             points == &train ? Curve::Kind::background : Curve::Kind::measured});
    }
  }
  if (plot.curves.empty()) return nothing(fmt::format("No run has a loss against {}.", x_label));
  scale(plot);
  range.set(plot);
  cuts = cuts || range.cuts();
  return figure(fmt::format("Loss against {}", x_label), draw(plot, id));
}

// Validation loss minus that of the residual run with the same seed, at as many tokens; empty of a
// single moment, which tables have.
std::string difference_plot(const std::vector<RunData>& runs, const Comparison& comparison) {
  LinePlot plot{.alt = "Validation loss minus that of the residual run, against tokens",
                .y_label = "difference (nats per token)"};
  size_t moments = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    std::map<double, double> baseline;
    for (const Metric& metric : runs[*comparison.runs[i].baseline].metrics) {
      if (!std::isnan(metric.tokens)) baseline[metric.tokens] = metric.val_loss;
    }
    Curve curve{.style = line_style(i)};
    for (const Metric& metric : runs[i].metrics) {
      if (std::isnan(metric.tokens)) continue;
      const auto other = baseline.find(metric.tokens);
      if (other == baseline.end() || std::isnan(metric.val_loss - other->second)) continue;
      curve.x.push_back(metric.tokens);
      curve.y.push_back(metric.val_loss - other->second);
    }
    moments = std::max(moments, curve.x.size());
    if (!curve.x.empty()) plot.curves.push_back(std::move(curve));
  }
  if (plot.curves.size() < 2 || moments < 2) return "";
  scale_to_tokens(plot);
  return figure("Validation loss minus the residual run’s", draw(plot, "loss-difference"));
}

// A site's sources as the columns of its mechanism's heat map, where the partial sum of block n
// stands in b_n's column.
struct SourceNames {
  explicit SourceNames(const RunData& run) : block_size(run.block_size) {}
  bool is_partial(const RunData& run, int site, size_t column) const {
    return block_size > 0 && site < 2 * run.layers && site % block_size != 0 &&
           int64_t(column) == site / block_size + 1;
  }
  const char* axis() const {
    return block_size > 0 ? "block (0: embedding)" : "source (0: embedding, i: sublayer i)";
  }
  int64_t block_size;
};

// The rows of a heat map are sites first, first + 2, ... up to last.
HeatMap weight_map(const RunData& run, const SiteValues& weights, int first, int last,
                   size_t columns) {
  const SourceNames names(run);
  HeatMap map{.x_label = names.axis(), .y_label = "Transformer layer"};
  for (size_t column = 0; column < columns; ++column) {
    map.column_names.push_back(std::to_string(column));
  }
  for (int site = first; site <= last; site += 2) {
    map.row_names.push_back(site == 2 * run.layers ? "output" : std::to_string(site / 2 + 1));
    std::vector<double>& values = map.values.emplace_back(columns, kNotMeasured);
    std::vector<bool>& outlined = map.outlined.emplace_back(columns, false);
    const auto found = weights.find(site);
    if (found == weights.end()) continue;
    std::copy(found->second.begin(), found->second.end(), values.begin());
    for (size_t column = 0; column < found->second.size(); ++column) {
      outlined[column] = names.is_partial(run, site, column);
    }
  }
  return map;
}

std::string run_depth_weights(const RunData& run, size_t index) {
  const ProbeSnapshot probe = last_probe(run, "depth_weights");
  double low = 0, high = 0;
  size_t columns = 0;
  for (const auto& [site, weights] : probe.sites) {
    columns = std::max(columns, weights.size());
    for (double weight : weights) {
      if (!std::isfinite(weight) || weights.size() == 1) continue;
      low = std::min(low, weight);
      high = std::max(high, weight);
    }
  }
  if (high == 0) high = 1;
  if (low < 0) {
    high = std::max(high, -low);
    low = -high;
  }
  const int output = 2 * run.layers;
  const auto panel = [&](const char* title, const char* kind, int first, int last) {
    HeatMap map = weight_map(run, probe.sites, first, last, columns);
    map.alt = fmt::format("Depth weights of {}, {}", run.label, title);
    if (first == output) map.y_label = "";
    map.low = low;
    map.high = high;
    return figure(title, draw(map, fmt::format("weights{}-{}", index, kind)));
  };
  std::string panels = panel("Before attention", "attention", 0, output - 2) +
                       panel("Before feed-forward", "mlp", 1, output - 1);
  if (probe.sites.count(output)) panels += panel("At the output", "output", output, output);
  const bool block = SourceNames(run).block_size > 0;
  return fmt::format(
      "<h3><bdi>{}</bdi> <small>{}, step {}</small></h3>\n{}"
      "<p class=\"key\">mean weight {}{}A lone source has weight 1, off the scale.</p>\n",
      escape_html(run.label), escape_html(run.mechanism), probe.step, row_of(panels),
      heat_legend(low, high),
      block ? "<span class=\"outlined\"></span> partial sum of the site’s own block. " : "");
}

// One value per Transformer layer, at its feed-forward.
Points per_layer(const SiteValues& sites) {
  Points out;
  for (const auto& [site, values] : sites) {
    if (site % 2 == 0 || values.empty() || !std::isfinite(values[0])) continue;
    const int layer = (site + 1) / 2;
    out.x.push_back(layer);
    out.y.push_back(values[0]);
  }
  return out;
}

// Brings very small or large values to 1 .. 10 and says so in the label; values that span more than
// a factor of 50 get a logarithmic axis instead.
void scale_values(LinePlot& plot) {
  double least = INFINITY, most = 0;
  for (const Curve& curve : plot.curves) {
    for (double y : curve.y) {
      most = std::max(most, y);
      if (y > 0) least = std::min(least, y);
    }
  }
  if (most == 0) return;
  plot.log_y = most > 50 * least;
  const int exponent = int(std::floor(std::log10(most)));
  if (plot.log_y || (exponent >= -2 && exponent <= 3)) {
    if (!plot.log_y) {
      plot.y_low = 0;
      plot.y_high = 1.06 * most;
    }
    return;
  }
  const double factor = std::pow(10.0, exponent);
  for (Curve& curve : plot.curves) {
    for (double& y : curve.y) y /= factor;
  }
  plot.y_low = 0;
  plot.y_high = 1.06 * most / factor;
  plot.y_label += " (×10" + superscript(exponent) + ")";
}

std::string magnitude_plot(const std::vector<RunData>& runs, const char* probe, const char* title,
                           const char* y_label, std::vector<bool>& shown) {
  LinePlot plot{.alt = title, .x_label = "Transformer layer", .y_label = y_label, .whole_x = true};
  for (size_t i = 0; i < runs.size(); ++i) {
    Points values = per_layer(last_probe(runs[i], probe).sites);
    if (values.x.empty()) continue;
    shown[i] = true;
    plot.curves.push_back({std::move(values.x), std::move(values.y), line_style(i)});
  }
  if (plot.curves.empty()) return nothing(fmt::format("No run has a {} probe.", probe));
  scale_values(plot);
  return figure(title, draw(plot, probe));
}

// Indices of the runs that are shown, and the labels of those that are not.
struct Shown {
  explicit Shown(const std::vector<RunData>& runs, const std::vector<bool>& shown) {
    for (size_t i = 0; i < runs.size(); ++i) {
      if (shown[i]) {
        indices.push_back(i);
      } else {
        missing.push_back(runs[i].label);
      }
    }
  }
  std::vector<size_t> indices;
  std::vector<std::string> missing;
};

std::vector<std::string> badly_timed(const Comparison& comparison) {
  std::vector<std::string> names;
  for (const RunSummary& run : comparison.runs) {
    if (!std::isnan(run.seconds) && !run.speed.well_measured()) names.push_back(run.label);
  }
  return names;
}

}  // namespace

std::string loss_figures(const std::vector<RunData>& runs, const Comparison& comparison) {
  std::vector<bool> has_loss(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    has_loss[i] = std::any_of(runs[i].metrics.begin(), runs[i].metrics.end(), [](const Metric& m) {
      return !std::isnan(m.loss) || !std::isnan(m.val_loss);
    });
  }
  const Shown shown(runs, has_loss);
  if (shown.indices.empty()) return nothing("No run has logged a loss.");
  bool cuts = false;
  const std::string by_tokens =
      loss_plot(runs, &Metric::tokens, "tokens", scale_to_tokens, "loss-tokens", cuts);
  const std::string by_time =
      loss_plot(runs, &Metric::seconds, "training time", scale_to_time, "loss-time", cuts);
  const std::string difference = comparison.residual ? difference_plot(runs, comparison) : "";
  return legend_of(runs, shown.indices) + row_of(by_tokens + by_time + difference) +
         fmt::format(
             "<p class=\"key\">Marked line: validation loss. Pale line: training loss, "
             "smoothed.{}{}</p>\n",
             cuts ? " The steep start is cut off at the top." : "",
             escape_html(caution_of_times(badly_timed(comparison)))) +
         left_out(shown.missing, "no loss in its log");
}

std::string depth_weight_figures(const std::vector<RunData>& runs) {
  std::string out;
  std::vector<std::string> missing;
  for (size_t i = 0; i < runs.size(); ++i) {
    const SiteValues weights = last_probe(runs[i], "depth_weights").sites;
    const bool any = std::any_of(weights.begin(), weights.end(),
                                 [](const auto& site) { return !site.second.empty(); });
    if (any && runs[i].layers > 0) {
      out += run_depth_weights(runs[i], i);
    } else {
      missing.push_back(runs[i].label);
    }
  }
  if (out.empty()) return nothing("No run has depth weights in its probes.");
  return out + left_out(missing, "no depth weights in its probes");
}

std::string magnitude_figures(const std::vector<RunData>& runs) {
  std::vector<bool> drawn(runs.size());
  const std::string state =
      magnitude_plot(runs, "state_rms", "Output magnitude", "RMS of the state", drawn);
  const std::string gradient =
      magnitude_plot(runs, "gradient_rms", "Gradient magnitude", "RMS of the gradient", drawn);
  const Shown shown(runs, drawn);
  if (shown.indices.empty()) return nothing("No run has magnitudes in its probes.");
  return legend_of(runs, shown.indices) + row_of(state + gradient) +
         "<p class=\"key\">At the last probed step. Output magnitude: the running state (residual "
         "stream, or partial sum of the block) after each Transformer layer. Gradient magnitude: "
         "of the loss with respect to each layer’s feed-forward output.</p>\n" +
         left_out(shown.missing, "no magnitudes in its probes");
}

std::string entropy_figure(const std::vector<RunData>& runs) {
  LinePlot plot{
      .alt = "Depth entropy against step", .x_label = "step", .y_label = "mean entropy (nats)"};
  std::vector<bool> drawn(runs.size());
  bool has_uniform = false;
  size_t most_steps = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    Curve measured{.style = line_style(i)};
    Curve uniform{.style = line_style(i), .kind = Curve::Kind::reference};
    for (const auto& [step, entropy] : depth_entropies(runs[i])) {
      measured.x.push_back(double(step));
      measured.y.push_back(entropy.measured);
      if (std::isnan(entropy.uniform)) continue;
      uniform.x.push_back(double(step));
      uniform.y.push_back(entropy.uniform);
    }
    if (measured.x.empty()) continue;
    drawn[i] = true;
    most_steps = std::max(most_steps, measured.x.size());
    has_uniform = has_uniform || !uniform.x.empty();
    if (!uniform.x.empty()) plot.curves.push_back(std::move(uniform));
    plot.curves.push_back(std::move(measured));
  }
  const Shown shown(runs, drawn);
  if (shown.indices.empty()) return nothing("No run has depth entropies in its probes.");
  if (most_steps == 1) return nothing("Depth entropies are there of one step; a curve takes two.");
  return legend_of(runs, shown.indices) + row_of(figure("Depth entropy", draw(plot, "entropy"))) +
         fmt::format(
             "<p class=\"key\">Mean over the sites that have two sources or more. Lower: a "
             "site attends to fewer sources.{}</p>\n",
             has_uniform ? " Dotted: what uniform weights would give." : "") +
         left_out(shown.missing, "no depth entropy in its probes");
}

std::string expert_load_figures(const std::vector<RunData>& runs) {
  std::string maps;
  double most = 0;
  std::vector<HeatMap> drawn;
  for (const RunData& run : runs) {
    HeatMap& map = drawn.emplace_back();
    map = {.alt = "Load of experts, " + run.label, .x_label = "expert", .y_label = "layer"};
    for (const auto& [site, shares] : last_probe(run, "expert_load").sites) {
      if (shares.empty() || map.values.size() == kMostCells) continue;
      double mean = 0;
      for (const double share : shares) mean += share / static_cast<double>(shares.size());
      map.row_names.push_back(std::to_string(site / 2 + 1));
      std::vector<double>& row = map.values.emplace_back();
      for (const double share : shares) row.push_back(mean > 0 ? share / mean : kNotMeasured);
      most = std::max(most, *std::max_element(row.begin(), row.end()));
      map.column_names.resize(std::max(map.column_names.size(), shares.size()));
    }
    for (size_t e = 0; e < map.column_names.size(); ++e) {
      map.column_names[e] = std::to_string(e + 1);
    }
    for (std::vector<double>& row : map.values) row.resize(map.column_names.size(), kNotMeasured);
  }
  if (most == 0) most = 1;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (drawn[i].values.empty()) continue;
    drawn[i].high = most;
    maps += figure("<bdi>" + escape_html(runs[i].label) + "</bdi>",
                   draw(drawn[i], fmt::format("experts{}", i)));
  }
  if (maps.empty()) return "";
  return row_of(maps) + fmt::format(
                            "<p class=\"key\">tokens that chose an expert, over the mean of its "
                            "layer {}</p>\n",
                            heat_legend(0, most));
}

}  // namespace attnres
