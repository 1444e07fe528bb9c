#include "attnres/report/arms.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attnres/report/run_differences.h"

namespace attnres {
namespace {

std::map<int64_t, double> losses_by_seed(const std::vector<size_t>& arm,
                                         const std::vector<RunSummary>& runs) {
  std::map<int64_t, std::vector<double>> losses;
  for (size_t i : arm) {
    if (std::isnan(runs[i].final_val_loss)) continue;
    losses[runs[i].seed.value_or(-1)].push_back(runs[i].final_val_loss);
  }
  std::map<int64_t, double> out;
  for (const auto& [seed, of_seed] : losses) out[seed] = sample_mean(of_seed);
  return out;
}

std::vector<double> values_of(const std::map<int64_t, double>& losses) {
  std::vector<double> values;
  for (const auto& [seed, loss] : losses) values.push_back(loss);
  return values;
}

// "block4" of a run that a study named block4-seed2; empty of one that is named otherwise.
std::string label_without_seed(const RunSummary& run) {
  const std::string seed = run.seed ? fmt::format("-seed{}", *run.seed) : "";
  const bool has_seed = !seed.empty() && run.label.ends_with(seed);
  return has_seed ? run.label.substr(0, run.label.size() - seed.size()) : "";
}

// What the runs of an arm are called but for their seeds; empty where they differ.
std::string common_label(const Arm& arm, const std::vector<RunSummary>& runs) {
  const std::string first = label_without_seed(runs[arm.runs[0]]);
  const bool is_common = std::all_of(arm.runs.begin(), arm.runs.end(), [&](size_t run) {
    return label_without_seed(runs[run]) == first;
  });
  return is_common ? first : "";
}

// An arm of several runs goes by what these are called, or else by its mechanism, where no other
// arm has that.
void name_arms(std::vector<Arm>& arms, const std::vector<RunSummary>& runs) {
  const auto rename = [&](const auto& named) {
    std::vector<std::string> names;
    for (const Arm& arm : arms) names.push_back(named(arm));
    for (size_t i = 0; i < arms.size(); ++i) {
      const bool is_free =
          !names[i].empty() && std::count(names.begin(), names.end(), names[i]) == 1;
      if (arms[i].runs.size() > 1 && is_free) arms[i].label = names[i];
    }
  };
  rename([&](const Arm& arm) { return runs[arm.runs[0]].mechanism; });
  rename([&](const Arm& arm) { return common_label(arm, runs); });
}

ArmDifference difference_to(const Arm& baseline, const Arm& arm) {
  const std::vector<double> differences = pair_up(arm, baseline).differences;
  ArmDifference out{.pairs = differences.size()};
  if (out.pairs > 0) out.mean = sample_mean(differences);
  if (out.pairs < 2) return out;
  out.test = paired_t_test(differences);
  out.pairs_to_tell = pairs_needed(kDifferenceToTell, out.test->deviation);
  return out;
}

std::string arm_verdict(const Arm& arm) {
  const ArmDifference& difference = arm.difference;
  if (arm.losses.empty()) return "no loss measured";
  if (difference.pairs == 0) return "no seed in common";
  if (difference.pairs == 1) return "one seed cannot tell";
  if (difference.p_value >= kSignificance) return "not distinguishable";
  return difference.mean < 0 ? "better" : "worse";
}

}  // namespace

double Arm::mean_loss() const {
  return losses.empty() ? kNotMeasured : sample_mean(values_of(losses));
}

double Arm::loss_deviation() const {
  return losses.size() < 2 ? kNotMeasured : sample_deviation(values_of(losses));
}

Pairing pair_up(const Arm& ours, const Arm& theirs) {
  std::vector<double> our_losses, their_losses, differences;
  for (const auto& [seed, loss] : ours.losses) {
    const auto other = theirs.losses.find(seed);
    if (other == theirs.losses.end()) continue;
    our_losses.push_back(loss);
    their_losses.push_back(other->second);
    differences.push_back(loss - other->second);
  }
  if (differences.empty()) return {ours.mean_loss(), theirs.mean_loss(), {}};
  return {sample_mean(our_losses), sample_mean(their_losses), differences};
}

std::vector<Arm> group_into_arms(const std::vector<RunData>& runs,
                                 const std::vector<RunSummary>& summaries) {
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
  for (Arm& arm : arms) arm.losses = losses_by_seed(arm.runs, summaries);
  name_arms(arms, summaries);
  return arms;
}

void compare_arms(std::vector<Arm>& arms, const std::vector<std::optional<size_t>>& baselines) {
  std::vector<size_t> tested;
  std::vector<double> p_values;
  for (size_t i = 0; i < arms.size(); ++i) {
    if (!baselines[i] || baselines[i] == i) continue;
    arms[i].difference = difference_to(arms[*baselines[i]], arms[i]);
    if (!arms[i].difference.test) continue;
    tested.push_back(i);
    p_values.push_back(arms[i].difference.test->p_value);
  }
  const std::vector<double> adjusted = holm_adjusted(p_values);
  for (size_t k = 0; k < tested.size(); ++k) arms[tested[k]].difference.p_value = adjusted[k];
  for (size_t i = 0; i < arms.size(); ++i) {
    if (!baselines[i]) continue;
    arms[i].difference.verdict = baselines[i] == i ? "baseline" : arm_verdict(arms[i]);
  }
}

}  // namespace attnres
