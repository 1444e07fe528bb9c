#include "attnres/report/comparison.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "attnres/plots/html.h"
#include "attnres/report/run_differences.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

// The arm with the lowest mean of final losses but for one.
std::optional<size_t> lowest(const Comparison& c, std::optional<size_t> but = {}) {
  std::optional<size_t> best;
  double least = INFINITY;
  for (size_t i = 0; i < c.arms.size(); ++i) {
    const double loss = c.arms[i].mean_loss();
    if (!(loss < least) || i == but) continue;
    best = i;
    least = loss;
  }
  return best;
}

std::string join(const std::vector<std::string>& phrases) {
  return fmt::to_string(fmt::join(phrases, "; "));
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
  return fmt::format("{} ends at a validation loss of {} in the mean of {}, from {} to {}.",
                     arm.label, format_loss(arm.mean_loss()),
                     counted(int64_t(arm.losses.size()), "seed"), format_loss(low),
                     format_loss(high));
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

// What a repetition would settle.
std::string seeds_sentence(const Arm& arm, const Arm& other, size_t shared) {
  if (shared > 1) return "";
  if (arm.losses.size() > 1 || other.losses.size() > 1) {
    return fmt::format(" They have {} seed in common: repeat with equal seeds before believing it.",
                       shared == 0 ? "no" : "one");
  }
  return fmt::format(" One seed{} cannot tell: repeat with others before believing it.",
                     shared == 0 ? " each, and not the same," : "");
}

// Whether the seeds tell an arm from the baseline, and how many would.
std::string test_sentence(const Comparison& c, const Arm& arm) {
  const ArmDifference& difference = arm.difference;
  if (!difference.test) return "";
  const auto tested = std::count_if(c.arms.begin(), c.arms.end(),
                                    [](const Arm& a) { return a.difference.test.has_value(); });
  const Interval& interval = difference.test->interval;
  return fmt::format(
      " Over {} seeds {} is {} {}: it differs by {} (95 % interval {} to {}, p-value {}{}). About "
      "{} seeds "
      "would tell a difference of {}.",
      difference.pairs, arm.label,
      difference.verdict + (difference.p_value < kSignificance ? " than" : " from"),
      c.arms[*c.baseline].label, format_loss(difference.mean, true),
      format_loss(interval.low, true), format_loss(interval.high, true),
      format_p_value(difference.p_value),
      tested > 1 ? fmt::format(", corrected for {} arms", tested) : "",
      format_whole(int64_t(*difference.pairs_to_tell)), kDifferenceToTell);
}

// What the best arm is held against.
std::string rival_name(const Comparison& c, size_t rival) {
  const Arm& arm = c.arms[rival];
  if (rival != c.baseline) return "the next best, " + arm.label;
  if (!arm.residual) return "the baseline " + arm.label;
  return arm.runs.size() > 1 ? "the residual runs" : "the residual run " + arm.label;
}

std::string of_arms(const Comparison& c, size_t best, size_t other,
                    const RunDifferences& differences) {
  const Arm &arm = c.arms[best], &rival = c.arms[other];
  const Pairing p = pair_up(arm, rival);
  const size_t shared = p.differences.size();
  const double gap = p.theirs - p.ours;
  const std::string distance = gap < kLossResolution ? "level with" : format_loss(gap) + " below";
  const std::string seeds = shared > 1 ? fmt::format(" in the mean of {} seeds", shared)
                            : shared == 0 && arm.losses.size() > 1
                                ? fmt::format(" in the mean of its {} seeds", arm.losses.size())
                                : "";
  const auto lower = std::count_if(p.differences.begin(), p.differences.end(),
                                   [](double difference) { return difference < 0; });
  const std::string wins = shared > 1 ? fmt::format("; lower with {} of them", lower) : "";
  const SpeedWords speed = speed_words(arm, rival, c, differences);
  return fmt::format("{} has the lowest final validation loss, {}{}, {} {} ({}{}){}.", arm.label,
                     format_loss(p.ours), seeds, distance, rival_name(c, other),
                     format_loss(p.theirs), wins, speed.clause) +
         test_sentence(c, best == c.baseline ? rival : arm) + settings_sentence(differences) +
         speed.sentence + seeds_sentence(arm, rival, shared);
}

std::string verdict(Comparison& c, const std::vector<RunData>& runs,
                    const RunDifferences& differences) {
  c.best = lowest(c);
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
  if (!c.baseline) {
    const Arm& arm = c.arms[*c.best];
    return fmt::format("{} reached a validation loss of {}; no other run has measured one.",
                       arm.label, format_loss(arm.mean_loss()));
  }
  size_t other = c.best == c.baseline ? *lowest(c, c.best) : *c.baseline;
  // Where the arms share only some of their seeds, those decide.
  const Pairing p = pair_up(c.arms[*c.best], c.arms[other]);
  if (p.ours > p.theirs) std::swap(*c.best, other);
  return of_arms(c, *c.best, other, differences);
}

// The first arm that has a loss and that `eligible` admits.
template <class Predicate>
std::optional<size_t> first_with_loss(const std::vector<Arm>& arms, Predicate eligible) {
  const auto found = std::find_if(arms.begin(), arms.end(), [&](const Arm& arm) {
    return !arm.losses.empty() && eligible(arm);
  });
  return found == arms.end() ? std::nullopt : std::optional<size_t>(found - arms.begin());
}

void choose_baseline(Comparison& c) {
  c.residual = first_with_loss(c.arms, [](const Arm& arm) { return arm.residual; });
  const auto measured = std::count_if(c.arms.begin(), c.arms.end(),
                                      [](const Arm& arm) { return !arm.losses.empty(); });
  if (!c.incomparable.empty() || measured < 2) return;
  c.baseline = c.residual ? c.residual : first_with_loss(c.arms, [](const Arm&) { return true; });
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

// What slows a whole run evenly cannot be seen from within it.
std::vector<std::string> cautions_of_speeds(const Comparison& c) {
  constexpr double kFarApart = 0.2;
  std::string names;
  for (const RunSummary& run : c.runs) {
    if (!(std::abs(run.speed_ratio - 1) > kFarApart)) continue;
    names +=
        fmt::format("{}{} ({:.2f} times)", names.empty() ? "" : ", ", run.label, run.speed_ratio);
  }
  if (names.empty()) return {};
  return {fmt::format(
      "Far from the baseline’s speed: {}. Whatever else the machine did while a run went on is in "
      "that; train them in turns on a quiet one before believing it, as attnres study overhead "
      "does.",
      names)};
}

}  // namespace

Comparison compare(const std::vector<RunData>& runs) {
  Comparison c;
  for (const RunData& run : runs) c.runs.push_back(summarize(run));
  c.arms = group_into_arms(runs, c.runs);
  const RunDifferences differences = find_differences(runs);
  c.incomparable = differences.losses;
  choose_baseline(c);
  if (c.baseline) {
    compare_arms(c.arms, std::vector<std::optional<size_t>>(c.arms.size(), c.baseline));
  }
  compare_with_residual(c, c.incomparable.empty() && differences.speeds.empty());
  c.verdict = verdict(c, runs, differences);
  c.cautions = cautions_of_speeds(c);
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
