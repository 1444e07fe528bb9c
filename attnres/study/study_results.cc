#include "attnres/study/study_results.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "attnres/report/statistics.h"
#include "attnres/study/study_data.h"
#include "attnres/support/csv.h"

namespace attnres {
namespace {

// A loss that was never measured is the largest number.
double measured_loss(double loss) {
  return loss < std::numeric_limits<double>::max() ? loss : kNotMeasured;
}

StudyRunRecord record_of(const StudyRun& run, const RunStatus& status, const RunPlan& plan,
                         size_t axes) {
  const TrainingState saved = status.saved.value_or(TrainingState());
  StudyRunRecord record = {
      .name = run.name,
      .arms = run.arms,
      .seed = run.recipe.train.seed,
      .is_trial = run.is_trial,
      .state = status.state,
      .step = saved.step,
      .steps = plan.steps,
      .parameters = status.parameters > 0 ? status.parameters : plan.parameters,
      .tokens = static_cast<double>(saved.tokens),
      .flops = plan.flops,
      .from = run.from,
      .seconds = saved.seconds,
      .peak_bytes = saved.peak_bytes > 0 ? static_cast<double>(saved.peak_bytes) : kNotMeasured,
      .final_val_loss = measured_loss(saved.validation_loss),
      .best_val_loss = measured_loss(saved.best_loss),
      .best_step = saved.best_step,
      .error = status.error};
  record.arms.resize(axes);  // a trial has no arm of the axis "rate"
  return record;
}

// Against the baseline, as the page has it.
std::vector<Json> difference_cells(const ArmDifference& difference) {
  const auto& test = difference.test;
  return {Json(difference.pairs),
          number_or_null(difference.mean),
          test ? Json(test->interval.low) : Json(),
          test ? Json(test->interval.high) : Json(),
          number_or_null(difference.p_value),
          Json(difference.verdict),
          difference.pairs_to_tell ? Json(*difference.pairs_to_tell) : Json()};
}

void finish_means(ArmResult& arm, const std::vector<double>& losses) {
  if (losses.empty()) {
    arm.mean_loss = arm.loss_deviation = arm.tokens_per_second = NAN;
    return;
  }
  arm.tokens_per_second /= static_cast<double>(losses.size());
  arm.mean_loss = sample_mean(losses);
  arm.loss_deviation = losses.size() > 1 ? sample_deviation(losses) : NAN;
}

}  // namespace

StudyRecord with_runs(StudyRecord record, const std::vector<StudyRun>& runs,
                      const std::vector<RunStatus>& statuses, const std::vector<RunPlan>& plans) {
  record.runs.clear();
  for (size_t i = 0; i < runs.size(); ++i) {
    record.runs.push_back(record_of(runs[i], statuses[i], plans[i], record.axes.size()));
  }
  return record;
}

std::vector<ArmResult> arm_results(const StudyRecord& study) {
  std::vector<ArmResult> results;
  std::vector<std::vector<double>> losses;
  for (const StudyRunRecord& run : study.runs) {
    if (run.is_trial) continue;
    auto arm = std::find_if(results.begin(), results.end(),
                            [&](const ArmResult& result) { return result.arms == run.arms; });
    if (arm == results.end()) {
      arm = results.insert(arm, ArmResult{.arms = run.arms});
      losses.emplace_back();
    }
    ++arm->runs;
    if (!run.is_done()) continue;
    ++arm->done;
    losses[static_cast<size_t>(arm - results.begin())].push_back(run.final_val_loss);
    if (run.seconds > 0) arm->tokens_per_second += run.tokens / run.seconds;
  }
  for (size_t i = 0; i < results.size(); ++i) finish_means(results[i], losses[i]);
  return results;
}

std::string runs_csv(const StudyRecord& study) {
  std::string table;
  for (const StudyRunRecord& run : study.runs) {
    Json json = run_json(study, run);
    json.emplace("error", Json());
    std::vector<Json> names, cells;
    for (const auto& [key, value] : json.items()) {
      if (key == "arms") {
        names.insert(names.end(), study.axes.begin(), study.axes.end());
        cells.insert(cells.end(), run.arms.begin(), run.arms.end());
      } else {
        names.emplace_back(key);
        cells.push_back(value);
      }
    }
    if (table.empty()) table = csv_line(names);
    table += csv_line(cells);
  }
  return table;
}

std::string arms_csv(const StudyRecord& study) {
  std::vector<Json> names(study.axes.begin(), study.axes.end());
  for (const char* name : {"runs", "done", "mean_val_loss", "val_loss_deviation",
                           "tokens_per_second", "pairs", "mean_difference", "difference_low",
                           "difference_high", "p_value_holm", "verdict", "seeds_to_tell"}) {
    names.emplace_back(name);
  }
  const StudyArms compared = compare_study(study);
  std::string table = csv_line(names);
  for (const ArmResult& arm : arm_results(study)) {
    std::vector<Json> cells(arm.arms.begin(), arm.arms.end());
    for (const Json& cell :
         {Json(arm.runs), Json(arm.done), number_or_null(arm.mean_loss),
          number_or_null(arm.loss_deviation), number_or_null(arm.tokens_per_second)}) {
      cells.push_back(cell);
    }
    const auto found = find_arm(compared, study, arm.arms);
    const std::vector<Json> difference =
        difference_cells(found ? compared.arms[*found].difference : ArmDifference());
    cells.insert(cells.end(), difference.begin(), difference.end());
    table += csv_line(cells);
  }
  return table;
}

}  // namespace attnres
