#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attnres/parameters/weight_format.h"
#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/study/study_figures.h"

namespace attnres {
namespace {

constexpr const char* kWhole = blocks_of(WeightFormat::f32).name;

// What a format adds to the losses of an arm's models, by seed.
using AddedBySeed = std::map<int64_t, double>;

struct AddedLoss {
  size_t arm = 0;
  std::string format;
  AddedBySeed by_seed;
  std::vector<double> beside_baseline =
      {};                               // minus what it adds to the baseline's of the same seed
  std::optional<PairedTest> test = {};  // of that; of two pairs at least
  double p_value = kNotMeasured;        // by Holm, for all that are tested

  std::vector<double> values() const {
    std::vector<double> all;
    for (const auto& [seed, added] : by_seed) all.push_back(added);
    return all;
  }
};

AddedBySeed added_losses(const StudyData& data, size_t arm, const std::string& format) {
  AddedBySeed added;
  for (const size_t run : data.arms.arms[arm].runs) {
    const auto& losses = data.losses_by_weights[run];
    const auto with = losses.find(format), without = losses.find(kWhole);
    if (with == losses.end() || without == losses.end()) continue;
    added[data.study.runs[run].seed] = with->second - without->second;
  }
  return added;
}

std::vector<std::string> formats_measured(const StudyData& data) {
  std::vector<std::string> formats;
  for (const WeightBlocks& format : kWeightFormats) {
    const bool any = std::any_of(data.losses_by_weights.begin(), data.losses_by_weights.end(),
                                 [&](const auto& losses) { return losses.contains(format.name); });
    if (any && format.name != std::string(kWhole)) formats.emplace_back(format.name);
  }
  return formats;
}

void compare_with_baseline(AddedLoss& added, const AddedBySeed& baseline) {
  for (const auto& [seed, loss] : added.by_seed) {
    const auto theirs = baseline.find(seed);
    if (theirs != baseline.end()) added.beside_baseline.push_back(loss - theirs->second);
  }
  if (added.beside_baseline.size() > 1) added.test = paired_t_test(added.beside_baseline);
}

// Of each format, in the order of the arms.
std::vector<AddedLoss> all_added(const StudyData& data) {
  std::vector<AddedLoss> all;
  for (const std::string& format : formats_measured(data)) {
    for (size_t arm = 0; arm < data.arms.arms.size(); ++arm) {
      AddedLoss added{.arm = arm, .format = format, .by_seed = added_losses(data, arm, format)};
      if (added.by_seed.empty()) continue;
      const std::optional<size_t>& baseline = data.arms.baselines[arm];
      if (baseline && *baseline != arm) {
        compare_with_baseline(added, added_losses(data, *baseline, format));
      }
      all.push_back(std::move(added));
    }
  }
  std::vector<double> p_values;
  for (const AddedLoss& added : all) {
    if (added.test) p_values.push_back(added.test->p_value);
  }
  p_values = holm_adjusted(p_values);
  auto next = p_values.begin();
  for (AddedLoss& added : all) {
    if (added.test) added.p_value = *next++;
  }
  return all;
}

// q8_0 adds less than the four decimals of other losses show.
std::string added_words(double loss) {
  return format_loss(loss, true, 5);
}
std::string interval_words(const Interval& interval) {
  return fmt::format("{} to {}", added_words(interval.low), added_words(interval.high));
}

std::string verdict_of(const AddedLoss& added) {
  if (!(added.p_value < kSignificance)) return "not distinguishable";
  return added.test->mean > 0 ? "worse" : "better";
}

std::string added_table(const StudyData& data, const std::vector<AddedLoss>& all) {
  std::vector<std::string> headings;
  std::vector<TableColumn> columns = {{"weights", {}},
                                      {"seeds", {}},
                                      {"loss added", {}},
                                      {"minus the baseline’s", {}},
                                      {"95 % interval", {}},
                                      {"p", {}},
                                      {"", {}}};
  for (const AddedLoss& added : all) {
    headings.push_back(row_heading(data.arms.arms[added.arm].label));
    const auto& test = added.test;
    const std::vector<std::string> cells = {
        added.format,
        std::to_string(added.by_seed.size()),
        added_words(sample_mean(added.values())),
        added.beside_baseline.empty() ? kNoValue : added_words(sample_mean(added.beside_baseline)),
        test ? interval_words(test->interval) : kNoValue,
        test ? format_p_value(added.p_value) : kNoValue,
        data.arms.baselines[added.arm] == added.arm ? "baseline"
        : test                                      ? verdict_of(added)
                                                    : kNoValue};
    for (size_t c = 0; c < cells.size(); ++c) columns[c].cells.push_back(cells[c]);
  }
  return numbers_table("arm", headings, columns);
}

std::string added_plot(const StudyData& data, const std::vector<AddedLoss>& all,
                       const std::string& id) {
  ForestPlot plot{.alt = "Loss added by quantized weights",
                  .x_label = "loss added (nats per token)"};
  std::vector<LegendEntry> entries;
  std::vector<size_t> rows;  // arms
  for (const AddedLoss& added : all) {
    auto row = std::find(rows.begin(), rows.end(), added.arm);
    if (row == rows.end()) {
      row = rows.insert(rows.end(), added.arm);
      plot.rows.push_back(plain_label(data.arms.arms[added.arm].label));
    }
    if (entries.empty() || entries.back().label != added.format) {
      entries.push_back({line_style(entries.size()), added.format});
      plot.series.push_back({.style = entries.back().style});
    }
    ForestPlot::Mean mean{.row = static_cast<size_t>(row - rows.begin()),
                          .mean = sample_mean(added.values())};
    if (added.by_seed.size() > 1) {
      const Interval interval = mean_interval(added.values());
      mean.low = interval.low;
      mean.high = interval.high;
      mean.values = added.values();
    }
    plot.series.back().means.push_back(std::move(mean));
  }
  return legend(entries) +
         figure("Loss with quantized weights, minus with whole ones", draw(plot, id));
}

std::vector<std::string> added_findings(const StudyData& data, const std::vector<AddedLoss>& all) {
  std::vector<std::string> findings;
  for (const AddedLoss& added : all) {
    if (!added.test) continue;
    findings.push_back(fmt::format(
        "{} weights add {} nats per token to {}, {} beside the baseline (95 % interval "
        "{}): {}. About {} seeds would tell a difference of {}.",
        added.format, added_words(sample_mean(added.values())), data.arms.arms[added.arm].label,
        added_words(added.test->mean), interval_words(added.test->interval), verdict_of(added),
        format_whole(static_cast<int64_t>(pairs_needed(kDifferenceToTell, added.test->deviation))),
        kDifferenceToTell));
  }
  return findings;
}

}  // namespace

StudyFigure quantization_figure(const StudyData& data, const std::string& id) {
  const std::vector<AddedLoss> all = all_added(data);
  if (all.empty()) {
    return {
        nothing("No model has been scored with quantized weights; the key “weights” of the "
                "study’s file names formats.")};
  }
  return {
      added_plot(data, all, id) + added_table(data, all) +
          how_to_read("What weights in a format add to the validation loss of a model that was "
                      "trained with whole ones. Beside the baseline: of the same seeds. Bars and "
                      "intervals: 95 %, Student’s t; p by Holm for all rows."),
      added_findings(data, all)};
}

}  // namespace attnres
