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

// JSON has no NaN, and a loss that was never measured is the largest number.
Json measured_loss(double loss) {
  const bool is_measured = std::isfinite(loss) && loss < std::numeric_limits<double>::max();
  return is_measured ? Json(loss) : Json();
}

Json run_json(const StudyRecord& record, const StudyRun& run, const RunStatus& status,
              const RunPlan& plan) {
  Json arms = Json::object();
  for (size_t i = 0; i < run.arms.size(); ++i) arms[record.axes[i]] = run.arms[i];
  const TrainingState saved = status.saved.value_or(TrainingState());
  Json json = {{"name", run.name},
               {"arms", arms},
               {"seed", run.recipe.train.seed},
               {"role", run.is_trial ? "trial" : "run"},
               {"state", name_of(status.state)},
               {"step", saved.step},
               {"steps", plan.steps},
               {"parameters", status.parameters > 0 ? status.parameters : plan.parameters},
               {"tokens", saved.tokens},
               {"flops", plan.flops},
               {"from", run.from.empty() ? Json() : Json(run.from)},
               {"seconds", saved.seconds},
               {"peak_bytes", saved.peak_bytes > 0 ? Json(saved.peak_bytes) : Json()},
               {"final_val_loss", measured_loss(saved.validation_loss)},
               {"best_val_loss", measured_loss(saved.best_loss)},
               {"best_step", saved.best_step}};
  if (!status.error.empty()) json["error"] = status.error;
  return json;
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

std::vector<ArmResult> arm_results(const std::vector<StudyRun>& runs,
                                   const std::vector<RunStatus>& statuses) {
  std::vector<ArmResult> results;
  std::vector<std::vector<double>> losses;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].is_trial) continue;
    auto arm = std::find_if(results.begin(), results.end(),
                            [&](const ArmResult& result) { return result.arms == runs[i].arms; });
    if (arm == results.end()) {
      arm = results.insert(arm, ArmResult{.arms = runs[i].arms});
      losses.emplace_back();
    }
    ++arm->runs;
    if (statuses[i].state != RunState::done) continue;
    const TrainingState& saved = *statuses[i].saved;
    ++arm->done;
    losses[static_cast<size_t>(arm - results.begin())].push_back(saved.validation_loss);
    if (saved.seconds > 0) {
      arm->tokens_per_second += static_cast<double>(saved.tokens) / saved.seconds;
    }
  }
  for (size_t i = 0; i < results.size(); ++i) finish_means(results[i], losses[i]);
  return results;
}

Json study_json(const StudyRecord& record, const std::vector<StudyRun>& runs,
                const std::vector<RunStatus>& statuses, const std::vector<RunPlan>& plans) {
  Json list = Json::array(), baseline = Json::object();
  for (size_t i = 0; i < runs.size(); ++i) {
    list.push_back(run_json(record, runs[i], statuses[i], plans[i]));
  }
  for (const auto& [axis, arm] : record.baseline) baseline[axis] = arm;
  return {{"study", record.name},
          {"question", record.question},
          {"claim", record.claim},
          {"figures", Json::parse(record.figures)},
          {"baseline", baseline},
          {"axes", record.axes},
          {"data", record.data},
          {"validation", record.validation},
          {"threads", record.threads},
          {"tuning", Json::parse(record.tuning)},
          {"chosen", Json::parse(record.chosen)},
          {"smoke", record.smoke},
          {"runs", list}};
}

std::string runs_csv(const StudyRecord& record, const std::vector<StudyRun>& runs,
                     const std::vector<RunStatus>& statuses, const std::vector<RunPlan>& plans) {
  std::string table;
  for (size_t i = 0; i < runs.size(); ++i) {
    Json run = run_json(record, runs[i], statuses[i], plans[i]);
    run.emplace("error", Json());
    std::vector<Json> names, cells;
    for (const auto& [key, value] : run.items()) {
      if (key == "arms") {
        names.insert(names.end(), record.axes.begin(), record.axes.end());
        cells.insert(cells.end(), runs[i].arms.begin(), runs[i].arms.end());
        cells.resize(names.size());  // a trial has no arm of the axis "rate"
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

std::string arms_csv(const StudyRecord& record, const std::vector<StudyRun>& runs,
                     const std::vector<RunStatus>& statuses, const Json& study) {
  std::vector<Json> names(record.axes.begin(), record.axes.end());
  for (const char* name : {"runs", "done", "mean_val_loss", "val_loss_deviation",
                           "tokens_per_second", "pairs", "mean_difference", "difference_low",
                           "difference_high", "p_value_holm", "verdict", "seeds_to_tell"}) {
    names.emplace_back(name);
  }
  const StudyText text = parse_study_text(study, "study.json");
  const StudyArms compared = compare_study(text);
  std::string table = csv_line(names);
  for (const ArmResult& arm : arm_results(runs, statuses)) {
    std::vector<Json> cells(arm.arms.begin(), arm.arms.end());
    for (const Json& cell :
         {Json(arm.runs), Json(arm.done), number_or_null(arm.mean_loss),
          number_or_null(arm.loss_deviation), number_or_null(arm.tokens_per_second)}) {
      cells.push_back(cell);
    }
    const auto found = find_arm(compared, text, arm.arms);
    const std::vector<Json> difference =
        difference_cells(found ? compared.arms[*found].difference : ArmDifference());
    cells.insert(cells.end(), difference.begin(), difference.end());
    table += csv_line(cells);
  }
  return table;
}

}  // namespace attnres
