#include "attnres/study/comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "attnres/study/html.h"
#include "attnres/study/run_differences.h"

namespace attnres {
namespace {

RunSummary summarize(const RunData& run) {
  RunSummary summary{.label = run.label, .mechanism = run.mechanism};
  if (const Json* n = find(run.record, "/parameters"); n && n->is_number_integer()) {
    summary.parameters = n->get<int64_t>();
  }
  if (const Json* seed = find(run.record, "/recipe/train/seed");
      seed && seed->is_number_integer()) {
    summary.seed = seed->get<int64_t>();
  }
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

std::vector<Arm> arms_of(const std::vector<RunData>& runs) {
  std::vector<Arm> arms;
  std::vector<std::string> keys;
  for (size_t i = 0; i < runs.size(); ++i) {
    // Runs without a recipe are known to be equal in nothing.
    const bool has_recipe = find(runs[i].record, "/recipe") != nullptr;
    const std::string key = has_recipe ? arm_key(runs[i]) : fmt::format("run {}", i);
    const auto found = std::find(keys.begin(), keys.end(), key);
    if (found == keys.end()) {
      keys.push_back(key);
      arms.push_back({runs[i].label, {i}, runs[i].residual});
    } else {
      arms[size_t(found - keys.begin())].runs.push_back(i);
    }
  }
  for (Arm& arm : arms) {
    const std::string& mechanism = runs[arm.runs[0]].mechanism;
    const auto uses = std::count_if(arms.begin(), arms.end(), [&](const Arm& other) {
      return runs[other.runs[0]].mechanism == mechanism;
    });
    if (arm.runs.size() > 1 && uses == 1) arm.label = mechanism;
  }
  return arms;
}

// Final losses by seed; of runs that repeat a seed the mean.
std::map<int64_t, double> losses_by_seed(const Arm& arm, const std::vector<RunSummary>& runs) {
  std::map<int64_t, std::pair<double, int>> sums;
  for (size_t i : arm.runs) {
    if (std::isnan(runs[i].final_val_loss)) continue;
    auto& [sum, count] = sums[runs[i].seed.value_or(-1)];
    sum += runs[i].final_val_loss;
    ++count;
  }
  std::map<int64_t, double> out;
  for (const auto& [seed, sum] : sums) out[seed] = sum.first / sum.second;
  return out;
}

double mean(const std::map<int64_t, double>& losses) {
  double sum = 0;
  for (const auto& [seed, loss] : losses) sum += loss;
  return losses.empty() ? kNotMeasured : sum / double(losses.size());
}

// Two arms over the seeds that both have; over all where they share none.
struct Pairing {
  double ours, theirs;           // mean final losses
  size_t shared = 0, lower = 0;  // seeds that both have; those in which ours is the lower
  size_t our_seeds, their_seeds;
};

Pairing pair_up(const std::map<int64_t, double>& ours, const std::map<int64_t, double>& theirs) {
  Pairing p{mean(ours), mean(theirs), 0, 0, ours.size(), theirs.size()};
  std::map<int64_t, double> our_shared, their_shared;
  for (const auto& [seed, loss] : ours) {
    const auto other = theirs.find(seed);
    if (other == theirs.end()) continue;
    our_shared[seed] = loss;
    their_shared[seed] = other->second;
    ++p.shared;
    p.lower += loss < other->second;
  }
  if (p.shared == 0) return p;
  p.ours = mean(our_shared);
  p.theirs = mean(their_shared);
  return p;
}

// The arm with the lowest mean of final losses among those `eligible` admits.
template <class Predicate>
std::optional<size_t> lowest(const Comparison& c, Predicate eligible) {
  std::optional<size_t> best;
  double least = INFINITY;
  for (size_t i = 0; i < c.arms.size(); ++i) {
    const double loss = mean(losses_by_seed(c.arms[i], c.runs));
    if (!(loss < least) || !eligible(i)) continue;
    best = i;
    least = loss;
  }
  return best;
}

std::string join(const std::vector<std::string>& phrases) {
  std::string out;
  for (const std::string& phrase : phrases) out += (out.empty() ? "" : "; ") + phrase;
  return out;
}

// What is compared where the depth mixing is the same.
std::string settings_sentence(const RunDifferences& differences) {
  return differences.settings.empty() ? "" : " What differs: " + join(differences.settings) + ".";
}

std::string of_incomparable(const Comparison& c, const RunDifferences& differences) {
  constexpr size_t kMostNamed = 4;
  std::string losses;
  size_t named = 0;
  for (const RunSummary& run : c.runs) {
    if (std::isnan(run.final_val_loss) || ++named > kMostNamed) continue;
    losses += fmt::format("{}{} {}", losses.empty() ? "" : ", ", run.label,
                          format_loss(run.final_val_loss));
  }
  return fmt::format("These runs do not compare: {}.{}{}", join(c.incomparable),
                     settings_sentence(differences),
                     named <= kMostNamed ? " Final validation losses: " + losses + "." : "");
}

std::string of_one_run(const RunSummary& run, const std::string& began_with) {
  std::string out = fmt::format("{} reached a validation loss of {} at step {}", run.label,
                                format_loss(run.final_val_loss), format_whole(run.final_val_step));
  if (run.speed.well_measured()) {
    out += fmt::format(", training on {} tokens a second",
                       format_whole(std::llround(run.speed.tokens_per_second)));
  }
  if (!began_with.empty()) out += ", begun with the weights of " + began_with;
  return out + ".";
}

std::string of_one_arm(const Comparison& c) {
  const Arm& arm = c.arms[*c.best];
  double low = INFINITY, high = -INFINITY;
  for (size_t i : arm.runs) {
    if (std::isnan(c.runs[i].final_val_loss)) continue;
    low = std::min(low, c.runs[i].final_val_loss);
    high = std::max(high, c.runs[i].final_val_loss);
  }
  const std::map<int64_t, double> losses = losses_by_seed(arm, c.runs);
  return fmt::format("{} ends at a validation loss of {} in the mean of {} seed{}, from {} to {}.",
                     arm.label, format_loss(mean(losses)), losses.size(),
                     losses.size() == 1 ? "" : "s", format_loss(low), format_loss(high));
}

Speed speed_of(const Arm& arm, const std::vector<RunSummary>& runs) {
  std::vector<Speed> speeds;
  for (size_t i : arm.runs) speeds.push_back(runs[i].speed);
  return joint_speed(speeds);
}

// What stands behind the loss, and the sentence for when that is nothing.
struct SpeedWords {
  std::string clause, sentence;
};

SpeedWords speed_words(const Arm& arm, const Arm& other, const Comparison& c,
                       const RunDifferences& differences) {
  if (!differences.speeds.empty()) {
    return {"", fmt::format(" Their speeds do not compare: {}.", join(differences.speeds))};
  }
  const Speed ours = speed_of(arm, c.runs), theirs = speed_of(other, c.runs);
  const SpeedRatio speed = speed_ratio(ours, theirs);
  if (!std::isnan(speed.ratio)) {
    return {fmt::format(", at {:.2f} ± {:.2f} times its speed", speed.ratio, speed.margin), ""};
  }
  const bool ours_lacks = !ours.well_measured();
  return {"", fmt::format(" Their speeds were not measured well enough to compare: {} {}.",
                          ours_lacks ? arm.label : other.label,
                          why_not_measured(ours_lacks ? ours : theirs))};
}

std::string seeds_sentence(const Pairing& p) {
  if (p.shared > 1) return "";
  if (p.our_seeds > 1 || p.their_seeds > 1) {
    return fmt::format(" They have {} seed in common: repeat with equal seeds before believing it.",
                       p.shared == 0 ? "no" : "one");
  }
  return fmt::format(" One seed{}: repeat with others before believing it.",
                     p.shared == 0 ? " each, and not the same" : "");
}

std::string of_arms(const Comparison& c, size_t best, size_t other,
                    const RunDifferences& differences) {
  const Arm &arm = c.arms[best], &rival = c.arms[other];
  const Pairing p = pair_up(losses_by_seed(arm, c.runs), losses_by_seed(rival, c.runs));
  const double gap = p.theirs - p.ours;
  const std::string distance = gap < kLossResolution ? "level with" : format_loss(gap) + " below";
  const std::string role = !rival.residual         ? "the next best, " + rival.label
                           : rival.runs.size() > 1 ? "the residual runs"
                                                   : "the residual run " + rival.label;
  const std::string seeds = p.shared > 1 ? fmt::format(" in the mean of {} seeds", p.shared)
                            : p.shared == 0 && p.our_seeds > 1
                                ? fmt::format(" in the mean of its {} seeds", p.our_seeds)
                                : "";
  const std::string wins =
      p.shared > 1 ? fmt::format("; lower with {} of them", p.lower) : std::string();
  const SpeedWords speed = speed_words(arm, rival, c, differences);
  return fmt::format("{} has the lowest final validation loss, {}{}, {} {} ({}{}){}.", arm.label,
                     format_loss(p.ours), seeds, distance, role, format_loss(p.theirs), wins,
                     speed.clause) +
         settings_sentence(differences) + speed.sentence + seeds_sentence(p);
}

std::string verdict(Comparison& c, const std::vector<RunData>& runs,
                    const RunDifferences& differences) {
  c.best = lowest(c, [](size_t) { return true; });
  if (!c.best) {
    return c.runs.size() == 1 ? c.runs[0].label + " has not measured a validation loss yet."
                              : "No run has measured a validation loss yet.";
  }
  if (c.runs.size() == 1) return of_one_run(c.runs[0], origin(runs[0]));
  if (!c.incomparable.empty()) {
    c.best.reset();
    return of_incomparable(c, differences);
  }
  if (c.arms.size() == 1) return of_one_arm(c);
  std::optional<size_t> other = c.residual;
  if (!other || other == c.best) other = lowest(c, [&](size_t i) { return i != *c.best; });
  if (!other) {
    const Arm& arm = c.arms[*c.best];
    return fmt::format("{} reached a validation loss of {}; no other run has measured one.",
                       arm.label, format_loss(mean(losses_by_seed(arm, c.runs))));
  }
  // Where the arms share only some of their seeds, those decide.
  const Pairing p =
      pair_up(losses_by_seed(c.arms[*c.best], c.runs), losses_by_seed(c.arms[*other], c.runs));
  if (p.ours > p.theirs) std::swap(c.best, other);
  return of_arms(c, *c.best, *other, differences);
}

void compare_with_residual(Comparison& c, bool speeds_compare) {
  if (!c.residual) return;
  const std::vector<size_t>& residual = c.arms[*c.residual].runs;
  for (RunSummary& run : c.runs) {
    const auto same_seed = std::find_if(residual.begin(), residual.end(), [&](size_t i) {
      return run.seed.has_value() && c.runs[i].seed == run.seed;
    });
    run.baseline = same_seed == residual.end() ? residual.front() : *same_seed;
  }
  for (RunSummary& run : c.runs) {
    const RunSummary& baseline = c.runs[*run.baseline];
    if (c.incomparable.empty()) run.loss_difference = run.final_val_loss - baseline.final_val_loss;
    if (speeds_compare) run.speed_ratio = speed_ratio(run.speed, baseline.speed).ratio;
  }
}

}  // namespace

Comparison compare(const std::vector<RunData>& runs) {
  Comparison c;
  for (const RunData& run : runs) c.runs.push_back(summarize(run));
  c.arms = arms_of(runs);
  const RunDifferences differences = find_differences(runs);
  c.incomparable = differences.losses;
  c.residual = lowest(c, [&](size_t i) { return c.arms[i].residual; });
  compare_with_residual(c, c.incomparable.empty() && differences.speeds.empty());
  c.verdict = verdict(c, runs, differences);
  for (const std::string& why : differences.speeds) {
    c.cautions.push_back(fmt::format("Speeds do not compare: {}.", why));
  }
  for (const RunSummary& run : c.runs) {
    if (std::isnan(run.speed.tokens_per_second) || run.speed.well_measured()) continue;
    c.cautions.push_back(fmt::format("The speed is not measured well: {} {}.", run.label,
                                     why_not_measured(run.speed)));
  }
  return c;
}

}  // namespace attnres
