#include "attnres/study/seed_curves.h"

#include <fmt/core.h>

#include <cmath>
#include <functional>
#include <map>

#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/report/depth_entropy.h"
#include "attnres/report/speed.h"

namespace attnres {
namespace {

struct Moment {
  double x, y;
};
// What one run measured, by step.
using Moments = std::map<int64_t, Moment>;

Moments validation_of(const RunData& run, Along along) {
  Moments moments;
  for (const Metric& metric : run.metrics) {
    const double x = along(metric);
    if (std::isfinite(x) && std::isfinite(metric.val_loss)) {
      moments[metric.step] = {x, metric.val_loss};
    }
  }
  return moments;
}

Moments entropy_of(const RunData& run) {
  Moments moments;
  for (const auto& [step, entropy] : depth_entropies(run)) {
    const double share = entropy.measured / entropy.uniform;
    if (std::isfinite(share)) moments[step] = {static_cast<double>(step), share};
  }
  return moments;
}

// By seed, and whether the run is done.
struct SeedMoments {
  Moments moments;
  bool is_done = false;
};
std::map<int64_t, SeedMoments> by_seed(const StudyData& data, size_t arm,
                                       const std::function<Moments(const RunData&)>& measured) {
  std::map<int64_t, SeedMoments> seeds;
  for (const size_t run : data.arms.arms[arm].runs) {
    if (!data.runs[run]) continue;
    const StudyRunRecord& record = data.study.runs[run];
    seeds[record.seed] = {measured(*data.runs[run]), record.is_done()};
  }
  return seeds;
}

std::map<int64_t, SeedMoments> losses_by_seed(const StudyData& data, size_t arm, Along along) {
  return by_seed(data, arm, [along](const RunData& run) { return validation_of(run, along); });
}

Points points_of(const Moments& moments) {
  Points points;
  for (const auto& [step, moment] : moments) {
    points.x.push_back(moment.x);
    points.y.push_back(moment.y);
  }
  return points;
}

Points mean_of(const std::vector<const Moments*>& runs) {
  Points mean;
  if (runs.empty()) return mean;
  const auto count = static_cast<double>(runs.size());
  for (const auto& [step, first] : *runs.front()) {
    Moment sum = {0, 0};
    size_t measured = 0;
    for (const Moments* run : runs) {
      const auto found = run->find(step);
      if (found == run->end()) break;
      sum = {sum.x + found->second.x, sum.y + found->second.y};
      ++measured;
    }
    if (measured < runs.size()) continue;
    mean.x.push_back(sum.x / count);
    mean.y.push_back(sum.y / count);
  }
  return mean;
}

SeedCurves curves_of(const std::map<int64_t, SeedMoments>& seeds) {
  SeedCurves curves;
  std::vector<const Moments*> done, begun;
  for (const auto& [seed, run] : seeds) {
    if (run.moments.empty()) continue;
    curves.seeds.push_back(points_of(run.moments));
    begun.push_back(&run.moments);
    if (run.is_done) done.push_back(&run.moments);
  }
  curves.mean = mean_of(done.empty() ? begun : done);
  return curves;
}

double along_tokens(const Metric& metric) {
  return metric.tokens;
}
double along_time(const Metric& metric) {
  return metric.seconds;
}

struct LossPlot {
  LinePlot plot;
  bool cuts = false;
};

LossPlot loss_plot(const StudyData& data, const std::vector<size_t>& arms, Along along,
                   const char* what) {
  LossPlot made;
  made.plot = {.alt = fmt::format("Validation loss against {}", what),
               .x_label = what,
               .y_label = "loss (nats per token)"};
  LossRange range;
  for (size_t i = 0; i < arms.size(); ++i) {
    const SeedCurves curves = validation_curves(data, arms[i], along);
    for (const Points& seed : curves.seeds) range.include(seed);
    add_curves(made.plot, curves, line_style(i));
  }
  if (!made.plot.curves.empty()) range.set(made.plot);
  made.cuts = range.cuts();
  return made;
}

std::string difference_plot(const StudyData& data, const std::vector<size_t>& arms) {
  LinePlot plot{.alt = "Validation loss minus the baseline's, against tokens",
                .y_label = "difference (nats per token)"};
  size_t moments = 0;
  for (size_t i = 0; i < arms.size(); ++i) {
    const SeedCurves curves = difference_curves(data, arms[i], along_tokens);
    moments = std::max(moments, curves.mean.x.size());
    add_curves(plot, curves, line_style(i));
  }
  if (moments < 2) return "";  // tables have a single moment
  double first = INFINITY, last = -INFINITY;
  for (const Curve& curve : plot.curves) {
    first = std::min(first, curve.x.front());
    last = std::max(last, curve.x.back());
  }
  plot.curves.push_back(zero_line(first, last));
  scale_to_tokens(plot);
  return figure("Validation loss minus the baseline’s", draw(plot, "loss-difference"));
}

// Names of the runs of these arms whose speeds were not measured well.
std::vector<std::string> badly_timed(const StudyData& data, const std::vector<size_t>& arms) {
  std::vector<std::string> names;
  for (const size_t arm : arms) {
    for (const size_t run : data.arms.arms[arm].runs) {
      const bool is_bad = data.runs[run] && last_validation(*data.runs[run]) != nullptr &&
                          !measure_speed(data.runs[run]->metrics).well_measured();
      if (is_bad) names.push_back(data.study.runs[run].name);
    }
  }
  return names;
}

}  // namespace

SeedCurves validation_curves(const StudyData& data, size_t arm, Along along) {
  return curves_of(losses_by_seed(data, arm, along));
}

SeedCurves difference_curves(const StudyData& data, size_t arm, Along along) {
  const auto& baseline = data.arms.baselines[arm];
  if (!baseline || *baseline == arm) return {};
  const auto theirs = losses_by_seed(data, *baseline, along);
  std::map<int64_t, SeedMoments> differences;
  for (const auto& [seed, ours] : losses_by_seed(data, arm, along)) {
    const auto other = theirs.find(seed);
    if (other == theirs.end()) continue;
    SeedMoments& pair = differences[seed];
    pair.is_done = ours.is_done && other->second.is_done;
    for (const auto& [step, moment] : ours.moments) {
      const auto found = other->second.moments.find(step);
      if (found == other->second.moments.end()) continue;
      pair.moments[step] = {moment.x, moment.y - found->second.y};
    }
  }
  return curves_of(differences);
}

double along_steps(const Metric& metric) {
  return static_cast<double>(metric.step);
}

SeedCurves entropy_curves(const StudyData& data, size_t arm) {
  return curves_of(by_seed(data, arm, entropy_of));
}

void add_curves(LinePlot& plot, const SeedCurves& curves, const LineStyle& style) {
  if (curves.seeds.size() > 1) {
    for (const Points& seed : curves.seeds) {
      plot.curves.push_back({seed.x, seed.y, style, Curve::Kind::background});
    }
  }
  if (!curves.mean.x.empty()) plot.curves.push_back({curves.mean.x, curves.mean.y, style});
}

Curve zero_line(double first_x, double last_x) {
  return {{first_x, last_x}, {0, 0}, {0x444444, 0, {}}, Curve::Kind::reference};
}

std::string seed_loss_figures(const StudyData& data, const std::vector<size_t>& arms) {
  LossPlot by_tokens = loss_plot(data, arms, along_tokens, "tokens");
  LossPlot by_time = loss_plot(data, arms, along_time, "training time");
  if (by_tokens.plot.curves.empty()) return nothing("No run has a validation loss yet.");
  scale_to_tokens(by_tokens.plot);
  std::string figures =
      figure("Validation loss against tokens", draw(by_tokens.plot, "loss-tokens"));
  std::string of_times;
  if (!by_time.plot.curves.empty()) {
    scale_to_time(by_time.plot);
    figures += figure("Validation loss against time", draw(by_time.plot, "loss-time"));
    of_times = escape_html(caution_of_times(badly_timed(data, arms)));
  }
  std::vector<LegendEntry> entries;
  for (size_t i = 0; i < arms.size(); ++i) {
    entries.push_back({line_style(i), data.arms.arms[arms[i]].label});
  }
  const bool cuts = by_tokens.cuts || by_time.cuts;
  const std::string difference = difference_plot(data, arms);
  return legend(entries) + row_of(figures + difference) +
         how_to_read(
             fmt::format("Marked line: mean over the seeds that are done. Pale lines: the "
                         "seeds, where they are several.{}{}{}",
                         difference.empty() ? "" : " The baseline’s is taken off seed by seed.",
                         cuts ? " The steep start is cut off at the top." : "", of_times));
}

std::string seed_loss_figure(const StudyData& data, const std::vector<size_t>& arms,
                             const std::string& id) {
  const LossPlot by_steps = loss_plot(data, arms, along_steps, "step");
  if (by_steps.plot.curves.empty()) return nothing("No run has a validation loss yet.");
  return row_of(figure("Validation loss, mean over the seeds", draw(by_steps.plot, id)));
}

}  // namespace attnres
