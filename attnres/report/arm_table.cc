#include "attnres/report/arm_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attnres/plots/html.h"

namespace attnres {
namespace {

std::string loss_or_none(double loss, bool sign = false) {
  return std::isnan(loss) ? kNoValue : format_loss(loss, sign);
}

std::string interval_cell(const ArmDifference& difference) {
  if (!difference.test) return kNoValue;
  const Interval& interval = difference.test->interval;
  return fmt::format("{} to {}", format_loss(interval.low, true), format_loss(interval.high, true));
}

std::string pairs_cell(const ArmDifference& difference) {
  const auto& pairs = difference.pairs_to_tell;
  return pairs ? format_whole(int64_t(*pairs)) : kNoValue;
}

}  // namespace

bool has_seeds(const Comparison& comparison) {
  return std::any_of(comparison.arms.begin(), comparison.arms.end(),
                     [](const Arm& arm) { return arm.losses.size() > 1; });
}

std::vector<TableColumn> arm_columns(const std::vector<Arm>& arms) {
  const bool compared = std::any_of(arms.begin(), arms.end(),
                                    [](const Arm& arm) { return !arm.difference.verdict.empty(); });
  std::vector<TableColumn> columns;
  const auto column = [&](const std::string& name, auto cell) {
    TableColumn& added = columns.emplace_back(TableColumn{name, {}});
    for (const Arm& arm : arms) added.cells.push_back(cell(arm));
  };
  const auto of_difference = [&](const std::string& name, auto cell) {
    if (compared) column(name, [&](const Arm& arm) { return cell(arm.difference); });
  };
  using Difference = const ArmDifference&;
  of_difference("verdict", [](Difference d) { return d.verdict; });
  if (compared) columns.back().is_words = true;
  column("seeds", [](const Arm& arm) { return std::to_string(arm.losses.size()); });
  column("mean loss", [](const Arm& arm) { return loss_or_none(arm.mean_loss()); });
  column("sd", [](const Arm& arm) { return loss_or_none(arm.loss_deviation()); });
  of_difference("difference", [](Difference d) { return loss_or_none(d.mean, true); });
  of_difference("95 % interval", interval_cell);
  of_difference("p-value",
                [](Difference d) { return d.test ? format_p_value(d.p_value) : kNoValue; });
  of_difference(fmt::format("seeds for {}", kDifferenceToTell), pairs_cell);
  return columns;
}

std::string arm_table_key(const Comparison& comparison) {
  return arm_table_key(comparison.baseline ? comparison.arms[*comparison.baseline].label : "");
}

std::string arm_table_key(const std::string& baseline) {
  const std::string seeds =
      "Mean and standard deviation (sd) of final validation losses over seeds, in nats per token.";
  if (baseline.empty()) return seeds;
  return seeds + fmt::format(
                     " Difference: minus {}, mean over the seeds that both have, each a pair; with "
                     "the interval of Student’s t for this arm alone. p-value: of the paired t "
                     "test, by Holm’s correction "
                     "for all arms tested; better or worse where it is below {}. Seeds for {}: how "
                     "many would tell so small a difference with a probability of {:.0f} %, if "
                     "differences go on to spread as these do.",
                     baseline, kSignificance, kDifferenceToTell, 100 * kPower);
}

}  // namespace attnres
