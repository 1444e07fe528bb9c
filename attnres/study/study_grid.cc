#include "attnres/study/study_grid.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "attnres/support/config.h"

namespace attnres {
namespace {

constexpr size_t kLongestRunName = 200;

using Overrides = std::vector<std::string>;

void check_overrides(const StudyRecipe& study, const Overrides& overrides) {
  for (const std::string& assignment : overrides) {
    const std::string key = key_of(assignment);
    require_usage(!overlap(key, "train.seed"),
                  "--set {}: seeds are an axis of every study; use "
                  "--seeds",
                  assignment);
    require_usage(!overlap(key, "name"), "--set {}: runs are named after their arms", assignment);
    const StudyAxis* axis = axis_that_sets(study.axes, key);
    require_usage(axis == nullptr, "--set {}: the axis {} sets {}; change the study's file instead",
                  assignment, axis ? axis->name : "", key);
    require_usage(!study.tune || !overlap(key, study.tune->key),
                  "--set {}: the study tunes {}; change its file instead", assignment, key);
  }
}

// What differs between the runs of a combination of arms.
struct Particulars {
  int64_t seed = 1;
  std::string value = {};  // of the setting that is tuned; empty: that of the base
};

Recipe make_recipe(const StudyRecipe& study, const GridOptions& options, const StudyRun& run,
                   const Particulars& particulars) {
  Overrides overrides;
  const auto add = [&](const Overrides& more) {
    overrides.insert(overrides.end(), more.begin(), more.end());
  };
  for (size_t i = 0; i < study.axes.size(); ++i) add(study.axes[i].find(run.arms[i])->overrides);
  if (run.is_trial) add(study.tune->overrides);
  if (options.smoke) add(study.smoke);
  add(options.overrides);
  if (!particulars.value.empty()) add({study.tune->key + "=" + particulars.value});
  Json recipe = parse_json(study.base, "base");
  try {
    apply_overrides(recipe, overrides);
    recipe["name"] = run.name;
    recipe["train"]["seed"] = particulars.seed;
    return parse_recipe(recipe);
  } catch (const UsageError& error) {
    fail_usage("run {}: {}", run.name, error.what());
  }
}

StudyRun finished(const StudyRecipe& study, const GridOptions& options, StudyRun run,
                  const Particulars& particulars) {
  require_usage(run.name.size() <= kLongestRunName,
                "run {}: a name of {} characters is too long for a folder; shorten those of arms",
                run.name, run.name.size());
  run.recipe = make_recipe(study, options, run, particulars);
  return run;
}

std::string name_of_run(const std::vector<std::string>& arms, int64_t seed) {
  std::string name;
  for (const std::string& arm : arms) name += arm + "-";
  return name + fmt::format("seed{}", seed);
}

// The run whose weights one with these arms begins with; empty: none.
std::string origin_of(const StudyRecipe& study, std::vector<std::string> arms, int64_t seed) {
  for (size_t i = 0; i < study.axes.size(); ++i) {
    const std::string& from = study.axes[i].find(arms[i])->from;
    if (from.empty()) continue;
    arms[i] = from;
    return name_of_run(arms, seed);
  }
  return "";
}

StudyRun make_run(const StudyRecipe& study, const GridOptions& options,
                  const std::vector<std::string>& arms, int64_t seed) {
  StudyRun run;
  run.name = name_of_run(arms, seed);
  run.arms = arms;
  run.from = origin_of(study, arms, seed);
  if (!run.from.empty()) run.needs.push_back(run.from);
  return finished(study, options, run, {.seed = seed});
}

StudyRun make_trial(const StudyRecipe& study, const GridOptions& options, const Trial& trial) {
  StudyRun run;
  run.name = trial.name();
  run.arms = trial.arms;
  run.is_trial = true;
  return finished(study, options, run, {.seed = 1, .value = trial.value});
}

// With the value that trials chose.
StudyRun make_tuned_run(const StudyRecipe& study, const GridOptions& options, StudyRun run,
                        const TunedValue& tuned, int64_t seed) {
  run.name = name_of_run(run.arms, seed);
  run.waits = !tuned.is_known;
  if (tuned.is_known && tuned.value.empty()) {
    run.obstacle =
        fmt::format("all trials of its {} diverged; give tune other values", study.tune->key);
  }
  return finished(study, options, run, {.seed = seed, .value = tuned.value});
}

// Those of a combination of arms and a seed, where the study tunes.
std::vector<StudyRun> make_tuned_runs(const StudyRecipe& study, const GridOptions& options,
                                      const std::vector<std::string>& arms, int64_t seed,
                                      const TrialLosses& losses) {
  std::vector<StudyRun> runs;
  const std::vector<std::string> standard = common_arms(study, arms);
  const TunedValue common = own_value(study, standard, options.smoke, losses);
  StudyRun run;
  run.arms = arms;
  run.needs = common.trials;
  if (study.tune->has_rate_axis()) run.arms.emplace_back(kCommonRate);
  runs.push_back(make_tuned_run(study, options, run, common, seed));
  if (!study.tune->has_rate_axis() || standard == arms) return runs;

  TunedValue own = own_value(study, arms, options.smoke, losses);
  own.is_known = own.is_known && common.is_known;  // else it may be the same run
  if (own.is_known && own.value == common.value) return runs;
  run.arms.back() = kOwnRate;
  run.needs.insert(run.needs.end(), own.trials.begin(), own.trials.end());
  if (!own.is_known) own.value.clear();
  runs.push_back(make_tuned_run(study, options, run, own, seed));
  return runs;
}

// By name, and those of the grid by recipe and what they begin with.
void require_distinct(const std::vector<StudyRun>& runs) {
  std::map<std::string, const StudyRun*> names, recipes;
  for (const StudyRun& run : runs) {
    require_usage(names.emplace(run.name, &run).second,
                  "axes: two runs are named {}; rename an arm", run.name);
    if (run.is_trial || run.waits || !run.obstacle.empty()) continue;
    Json recipe = recipe_to_json(run.recipe);
    recipe["name"] = run.from;
    const auto [same, is_new] = recipes.emplace(recipe.dump(), &run);
    require_usage(is_new, "axes: the runs {} and {} have the same recipe; leave one arm out",
                  same->second->name, run.name);
  }
}

// What has to be equal of two recipes for one to begin with the weights of the other.
Json what_stays(const Recipe& recipe) {
  Json stays = recipe_to_json(recipe);
  stays.erase("name");
  stays.erase("train");
  stays["model"].erase("depth_mixing");
  return stays;
}

void require_origins(const std::vector<StudyRun>& runs) {
  std::map<std::string, const StudyRun*> by_name;
  for (const StudyRun& run : runs) by_name[run.name] = &run;
  for (const StudyRun& run : runs) {
    if (run.from.empty()) continue;
    const Recipe& before = by_name.at(run.from)->recipe;
    const auto found = differences(what_stays(before), what_stays(run.recipe));
    require_usage(found.empty(), "run {}: it cannot begin with the weights of {}: {}", run.name,
                  run.from, found.empty() ? "" : found[0]);
    require_usage(!needs_retrofit(before, run.recipe) || before.model.is_residual(),
                  "run {}: it cannot begin with the weights of {}: only plain residual connections "
                  "can become others, not {}",
                  run.name, run.from, before.model.depth_mixing.name());
  }
}

}  // namespace

std::vector<StudyRun> plan_runs(const StudyRecipe& study, const GridOptions& options,
                                const TrialLosses& losses) {
  check_overrides(study, options.overrides);
  const int64_t seeds = options.seeds.value_or(options.smoke ? 1 : study.seeds);
  check_seeds(seeds);
  const auto grid = combinations(study.axes);
  require_usage(std::ssize(grid) * seeds <= kMostRuns, "axes: the grid has more than {} runs",
                kMostRuns);
  std::vector<StudyRun> runs;
  for (const Trial& trial : plan_trials(study, options.smoke)) {
    runs.push_back(make_trial(study, options, trial));
  }
  for (int64_t seed = 1; seed <= seeds; ++seed) {
    for (const std::vector<std::string>& arms : grid) {
      if (!study.tune) {
        runs.push_back(make_run(study, options, arms, seed));
        continue;
      }
      for (StudyRun& run : make_tuned_runs(study, options, arms, seed, losses)) {
        runs.push_back(std::move(run));
      }
    }
  }
  require_distinct(runs);
  require_origins(runs);
  return runs;
}

bool needs_retrofit(const Recipe& before, const Recipe& after) {
  return !(before.model.depth_mixing == after.model.depth_mixing);
}

}  // namespace attnres
