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

// What formats add to the losses of arms, as the losses of an arm for each format and each of them.
struct AddedLosses {
  std::vector<Arm> rows;             // compared with what the same format adds to the baseline
  std::vector<std::string> formats;  // of each row
};

std::map<int64_t, double> added_losses(const StudyData& data, size_t arm,
                                       const std::string& format) {
  std::map<int64_t, double> added;
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

// Of each format, in the order of the arms.
AddedLosses all_added(const StudyData& data) {
  AddedLosses all;
  std::vector<std::optional<size_t>> baselines;
  for (const std::string& format : formats_measured(data)) {
    std::map<size_t, size_t> row_of;  // arms
    for (size_t arm = 0; arm < data.arms.arms.size(); ++arm) {
      Arm row = data.arms.arms[arm];
      row.losses = added_losses(data, arm, format);
      row.difference = {};
      if (row.losses.empty()) continue;
      row_of[arm] = all.rows.size();
      all.rows.push_back(std::move(row));
      all.formats.push_back(format);
    }
    for (const auto& [arm, row] : row_of) {
      const auto baseline = row_of.find(data.arms.baselines[arm].value_or(arm));
      const bool has_one = data.arms.baselines[arm] && baseline != row_of.end();
      baselines.push_back(has_one ? std::optional(baseline->second) : std::nullopt);
    }
  }
  compare_arms(all.rows, baselines);
  return all;
}

// q8_0 adds less than the four decimals of other losses show.
std::string added_words(double loss) {
  return format_loss(loss, true, 5);
}
std::string interval_words(const Interval& interval) {
  return fmt::format("{} to {}", added_words(interval.low), added_words(interval.high));
}

std::vector<double> values_of(const Arm& row) {
  std::vector<double> values;
  for (const auto& [seed, added] : row.losses) values.push_back(added);
  return values;
}

std::string added_table(const AddedLosses& all) {
  std::vector<std::string> headings;
  std::vector<TableColumn> columns = {{"weights", {}},
                                      {"seeds", {}},
                                      {"loss added", {}},
                                      {"minus the baseline’s", {}},
                                      {"95 % interval", {}},
                                      {"p", {}},
                                      {"", {}}};
  for (size_t i = 0; i < all.rows.size(); ++i) {
    const Arm& row = all.rows[i];
    const ArmDifference& difference = row.difference;
    headings.push_back(row_heading(row.label));
    const std::vector<std::string> cells = {
        all.formats[i],
        std::to_string(row.losses.size()),
        added_words(row.mean_loss()),
        std::isnan(difference.mean) ? kNoValue : added_words(difference.mean),
        difference.test ? interval_words(difference.test->interval) : kNoValue,
        difference.test ? format_p_value(difference.p_value) : kNoValue,
        difference.verdict.empty() ? kNoValue : difference.verdict};
    for (size_t c = 0; c < cells.size(); ++c) columns[c].cells.push_back(cells[c]);
  }
  return numbers_table("arm", headings, columns);
}

std::string added_plot(const AddedLosses& all, const std::string& id) {
  ForestPlot plot{.alt = "Loss added by quantized weights",
                  .x_label = "loss added (nats per token)"};
  std::vector<LegendEntry> entries;
  std::vector<std::string> labels;  // of the plot's rows
  for (size_t i = 0; i < all.rows.size(); ++i) {
    const Arm& added = all.rows[i];
    auto row = std::find(labels.begin(), labels.end(), added.label);
    if (row == labels.end()) {
      row = labels.insert(labels.end(), added.label);
      plot.rows.push_back(plain_label(added.label));
    }
    if (entries.empty() || entries.back().label != all.formats[i]) {
      entries.push_back({line_style(entries.size()), all.formats[i]});
      plot.series.push_back({.style = entries.back().style});
    }
    ForestPlot::Mean mean{.row = static_cast<size_t>(row - labels.begin()),
                          .mean = added.mean_loss()};
    if (added.losses.size() > 1) {
      mean.values = values_of(added);
      const Interval interval = mean_interval(mean.values);
      mean.low = interval.low;
      mean.high = interval.high;
    }
    plot.series.back().means.push_back(std::move(mean));
  }
  return legend(entries) +
         figure("Loss with quantized weights, minus with whole ones", draw(plot, id));
}

std::vector<std::string> added_findings(const AddedLosses& all) {
  std::vector<std::string> findings;
  for (size_t i = 0; i < all.rows.size(); ++i) {
    const Arm& row = all.rows[i];
    const ArmDifference& difference = row.difference;
    if (!difference.test) continue;
    findings.push_back(fmt::format(
        "{} weights add {} nats per token to {}, {} beside the baseline (95 % interval "
        "{}): {}. About {} seeds would tell a difference of {}.",
        all.formats[i], added_words(row.mean_loss()), row.label, added_words(difference.mean),
        interval_words(difference.test->interval), difference.verdict,
        format_whole(static_cast<int64_t>(*difference.pairs_to_tell)), kDifferenceToTell));
  }
  return findings;
}

}  // namespace

StudyFigure quantization_figure(const StudyData& data, const std::string& id) {
  const AddedLosses all = all_added(data);
  if (all.rows.empty()) {
    return {
        nothing("No model has been scored with quantized weights; the key “weights” of the "
                "study’s file names formats.")};
  }
  return {
      added_plot(all, id) + added_table(all) +
          how_to_read("What weights in a format add to the validation loss of a model that was "
                      "trained with whole ones. Beside the baseline: of the same seeds. Bars and "
                      "intervals: 95 %, Student’s t; p by Holm for all rows."),
      added_findings(all)};
}

}  // namespace attnres
