#include "attnres/report/run_summary.h"

#include <cmath>

#include "attnres/support/told_numbers.h"

namespace attnres {

RunSummary summarize(const RunData& run) {
  RunSummary summary{
      .label = run.label, .mechanism = run.mechanism, .diverged_at = run.diverged_at};
  if (const Json* n = find(run.record, "/parameters")) {
    summary.parameters = count_in(*n).value_or(summary.parameters);
  }
  if (const Json* seed = find(run.record, "/recipe/train/seed")) summary.seed = whole_number(*seed);
  for (const Metric& metric : run.metrics) {
    if (!std::isnan(metric.seconds)) summary.seconds = metric.seconds;
    if (!std::isnan(metric.tokens)) summary.tokens = metric.tokens;
    if (std::isnan(metric.val_loss) || metric.val_loss >= summary.best_val_loss) continue;
    summary.best_val_loss = metric.val_loss;
    summary.best_val_step = metric.step;
  }
  if (const Metric* last = last_validation(run)) {
    summary.final_val_loss = last->val_loss;
    summary.final_val_step = last->step;
  }
  summary.speed = measure_speed(run.metrics);
  return summary;
}

}  // namespace attnres
