#include "attnres/study/comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attnres/study/html.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

double median(std::vector<double> values) {
  if (values.empty()) return kNotMeasured;
  const auto middle = values.begin() + ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

RunSummary summarize(const RunData& run) {
  RunSummary summary{.label = run.label, .mechanism = run.mechanism};
  if (const Json* n = find(run.record, "/parameters"); n && n->is_number_integer()) {
    summary.parameters = n->get<int64_t>();
  }
  std::vector<double> speeds;
  for (const Metric& metric : run.metrics) {
    if (!std::isnan(metric.seconds)) summary.seconds = metric.seconds;
    if (!std::isnan(metric.tokens)) summary.tokens = metric.tokens;
    if (!std::isnan(metric.tokens_per_second)) speeds.push_back(metric.tokens_per_second);
    if (std::isnan(metric.val_loss)) continue;
    summary.final_val_loss = metric.val_loss;
    if (!(metric.val_loss >= summary.best_val_loss)) {
      summary.best_val_loss = metric.val_loss;
      summary.best_val_step = metric.step;
    }
  }
  speeds.erase(speeds.begin(), speeds.begin() + ptrdiff_t(speeds.size() / 2));
  summary.tokens_per_second = median(std::move(speeds));
  return summary;
}

// The run with the lowest best validation loss among those `eligible` admits.
template <class Predicate>
std::optional<size_t> lowest(const std::vector<RunSummary>& runs, Predicate eligible) {
  std::optional<size_t> best;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (std::isnan(runs[i].best_val_loss) || !eligible(i)) continue;
    if (!best || runs[i].best_val_loss < runs[*best].best_val_loss) best = i;
  }
  return best;
}

std::string speed_clause(const RunSummary& run, const RunSummary& other) {
  const double ratio = run.tokens_per_second / other.tokens_per_second;
  return std::isfinite(ratio) ? fmt::format(", at {:.2f} times its speed", ratio) : "";
}

std::string verdict(const Comparison& c) {
  if (!c.best) {
    return c.runs.size() == 1 ? c.runs[0].label + " has not measured a validation loss yet."
                              : "No run has measured a validation loss yet.";
  }
  const RunSummary& best = c.runs[*c.best];
  const std::string reached = fmt::format("{} at step {}", format_loss(best.best_val_loss),
                                          format_whole(best.best_val_step));
  if (c.runs.size() == 1) {
    const std::string speed = std::isnan(best.tokens_per_second)
                                  ? ""
                                  : fmt::format(", training on {} tokens a second",
                                                format_whole(std::llround(best.tokens_per_second)));
    return fmt::format("{} reached a validation loss of {}{}.", best.label, reached, speed);
  }
  const bool residual_leads = c.residual == c.best;
  const auto other = c.residual && !residual_leads
                         ? c.residual
                         : lowest(c.runs, [&](size_t i) { return i != *c.best; });
  const std::string lead =
      fmt::format("{} has the lowest validation loss, {}", best.label, reached);
  if (!other) return lead + "; no other run has measured one.";
  const RunSummary& rival = c.runs[*other];
  const double gap = rival.best_val_loss - best.best_val_loss;
  const std::string distance = gap < kLossResolution ? "level with" : format_loss(gap) + " below";
  const char* role = c.residual == other ? "the residual run" : "the next best,";
  return fmt::format("{}, {} {} {} ({}){}.", lead, distance, role, rival.label,
                     format_loss(rival.best_val_loss), speed_clause(best, rival));
}

// Whether a part of run.json differs between runs that have it.
bool differs(const std::vector<RunData>& runs, const char* pointer) {
  const Json* first = nullptr;
  for (const RunData& run : runs) {
    const Json* here = find(run.record, pointer);
    if (here && first && *here != *first) return true;
    if (!first) first = here;
  }
  return false;
}

std::vector<std::string> cautions(const std::vector<RunData>& runs,
                                  const std::vector<RunSummary>& summaries) {
  std::vector<std::string> out;
  if (differs(runs, "/data/hash")) {
    out.push_back("The runs read different data (their hashes differ): losses do not compare.");
  }
  if (differs(runs, "/recipe/tokenizer")) {
    out.push_back("The tokenizers differ: losses per token do not compare.");
  }
  double fewest = INFINITY, most = 0;
  for (const RunSummary& run : summaries) {
    if (std::isnan(run.tokens)) continue;
    fewest = std::min(fewest, run.tokens);
    most = std::max(most, run.tokens);
  }
  if (fewest < 0.99 * most) {
    out.push_back(fmt::format(
        "The runs trained on different amounts, {} to {} tokens: compare them at equal tokens.",
        format_count(fewest), format_count(most)));
  }
  if (differs(runs, "/machine")) {
    out.push_back("The runs were made on different machines: speeds do not compare.");
  } else if (differs(runs, "/build")) {
    out.push_back("The runs were made by different builds: speeds may not compare.");
  }
  return out;
}

}  // namespace

Comparison compare(const std::vector<RunData>& runs) {
  Comparison c;
  for (const RunData& run : runs) c.runs.push_back(summarize(run));
  c.best = lowest(c.runs, [](size_t) { return true; });
  c.residual = lowest(c.runs, [&](size_t i) { return c.runs[i].mechanism == "residual"; });
  if (c.residual) {
    const RunSummary residual = c.runs[*c.residual];
    for (RunSummary& run : c.runs) {
      run.loss_difference = run.best_val_loss - residual.best_val_loss;
      run.speed_ratio = run.tokens_per_second / residual.tokens_per_second;
    }
  }
  c.verdict = verdict(c);
  c.cautions = cautions(runs, c.runs);
  return c;
}

}  // namespace attnres
