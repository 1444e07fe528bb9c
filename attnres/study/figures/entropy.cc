#include <algorithm>
#include <cmath>

#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/study/seed_curves.h"
#include "attnres/study/study_figures.h"

namespace attnres {
namespace {

// Of more arms the seeds are left out.
constexpr size_t kArmsWithSeeds = 4;

constexpr const char* kEntropy = "entropy over that of uniform weights";
constexpr const char* kDifference = "difference (nats per token)";

struct EntropyArm {
  std::string label;
  LineStyle style;
  SeedCurves entropy, difference;
};

// Those of shown_arms() that have depth weights.
std::vector<EntropyArm> entropy_arms(const StudyData& data) {
  std::vector<EntropyArm> arms;
  for (const size_t arm : data.shown_arms()) {
    SeedCurves entropy = entropy_curves(data, arm);
    if (entropy.mean.x.empty()) continue;
    arms.push_back({data.arms.arms[arm].label, line_style(arms.size()), std::move(entropy),
                    difference_curves(data, arm, along_steps)});
  }
  return arms;
}

std::string over_training(const std::vector<EntropyArm>& arms, SeedCurves EntropyArm::*curves,
                          LinePlot plot, const std::string& title, const std::string& id) {
  double last = 0;
  for (const EntropyArm& arm : arms) {
    SeedCurves shown = arm.*curves;
    if (shown.mean.x.empty()) continue;
    last = std::max(last, shown.mean.x.back());
    if (arms.size() > kArmsWithSeeds) shown.seeds.clear();
    add_curves(plot, shown, arm.style);
  }
  if (plot.curves.empty()) return "";
  if (curves == &EntropyArm::difference) {
    plot.curves.push_back(zero_line(0, last));
  }
  return figure(title, draw(plot, id));
}

// Where each arm ends, of those that went as far as any.
std::string at_the_end(const std::vector<EntropyArm>& arms, const std::string& id) {
  double last = 0;
  for (const EntropyArm& arm : arms) last = std::max(last, arm.entropy.mean.x.back());
  LinePlot plot{.alt = "Difference of losses at the end against entropy of depth weights",
                .x_label = kEntropy,
                .y_label = kDifference};
  double low = INFINITY, high = -INFINITY;
  for (const EntropyArm& arm : arms) {
    if (arm.difference.mean.x.empty() || arm.difference.mean.x.back() < last) continue;
    const double entropy = arm.entropy.mean.y.back();
    low = std::min(low, entropy);
    high = std::max(high, entropy);
    plot.curves.push_back({{entropy}, {arm.difference.mean.y.back()}, arm.style});
  }
  if (plot.curves.size() < 2 || low == high) return "";
  plot.curves.push_back(zero_line(low, high));
  return figure("At the end", draw(plot, id));
}

}  // namespace

StudyFigure entropy_figure(const StudyData& data, const std::string& id) {
  const std::vector<EntropyArm> arms = entropy_arms(data);
  if (arms.empty()) return {nothing("No run has depth entropies in its probes.")};
  std::vector<LegendEntry> entries;
  for (const EntropyArm& arm : arms) entries.push_back({arm.style, arm.label});
  const std::string figures =
      over_training(
          arms, &EntropyArm::entropy,
          {.alt = "Entropy of depth weights against step", .x_label = "step", .y_label = kEntropy},
          "Entropy of depth weights", id) +
      over_training(arms, &EntropyArm::difference,
                    {.alt = "Validation loss minus the baseline's, against step",
                     .x_label = "step",
                     .y_label = kDifference},
                    "Validation loss minus the baseline’s", id + "-difference") +
      at_the_end(arms, id + "-end");
  return {
      legend(entries) + row_of(figures) +
      how_to_read("Entropy: mean over the sites that choose among two sources or more, over the "
                  "mean of what uniform weights would give; lower is sharper. Marked: mean over "
                  "the seeds that are done.")};
}

}  // namespace attnres
