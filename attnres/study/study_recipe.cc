#include "attnres/study/study_recipe.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "attnres/support/config.h"
#include "attnres/support/format.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMostRuns = 10'000;
constexpr size_t kLongestName = 100;  // of an arm
constexpr size_t kLongestRunName = 200;

// The file's keys, with the base as it is used.
struct StudyFile {
  std::string name, question;
  Json base = Json::object(), axes = Json::object();
  int64_t seeds = 1;
  Json smoke = Json::object();

  template <class V>
  void visit(V& v) {
    v("name", name);
    v("question", question);
    v("base", base);
    v("axes", axes);
    v("seeds", seeds);
    v("smoke", smoke);
  }
};

// Names of files are made of it.
void check_name(const std::string& key, const std::string& name) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) || std::strchr("._+=-", c) != nullptr;
  };
  require_usage(!name.empty() && name.size() <= kLongestName && name[0] != '.' && name[0] != '-' &&
                    std::all_of(name.begin(), name.end(), is_plain),
                "{}: \"{}\" cannot be part of a file's name; use letters, digits and . _ + = -, "
                "{} at most, not beginning with . or -",
                key, one_line(name), kLongestName);
}

void check_seeds(int64_t seeds) {
  require_usage(seeds >= 1 && seeds <= kMostRuns, "seeds: expected 1 to {}, got {}", kMostRuns,
                seeds);
}

std::string key_of(const std::string& assignment) {
  return assignment.substr(0, assignment.find('='));
}

// Whether one is the other, or a part of it: "model.depth_mixing" and "model.depth_mixing.type".
bool overlap(const std::string& key, const std::string& other) {
  return (key + ".").starts_with(other + ".") || (other + ".").starts_with(key + ".");
}

// {"train.steps": 4} as "train.steps=4". What names the runs and seeds them is not free.
std::vector<std::string> read_overrides(const std::string& path, const Json& settings) {
  if (!settings.is_object()) detail::wrong_type(path, "an object of recipe keys", settings);
  std::vector<std::string> overrides;
  for (const auto& [key, value] : settings.items()) {
    require_usage(!overlap(key, "name"), "{}: runs are named after their arms, not by \"name\"",
                  path);
    require_usage(!overlap(key, "train.seed"), "{}: {} is set by \"seeds\"; leave it out", path,
                  key);
    overrides.push_back(fmt::format("{}={}", key, value.dump()));
  }
  return overrides;
}

std::vector<StudyAxis> read_axes(const Json& axes) {
  std::vector<StudyAxis> out;
  for (const auto& [name, arms] : axes.items()) {
    const std::string path = "axes." + name;
    check_name("axes", name);
    if (!arms.is_object()) detail::wrong_type(path, "an object of arms", arms);
    require_usage(!arms.empty(), "{}: an axis without arms has no runs; give it some", path);
    StudyAxis& axis = out.emplace_back(StudyAxis{name, {}});
    for (const auto& [arm, settings] : arms.items()) {
      check_name(path, arm);
      axis.arms.push_back({arm, read_overrides(fmt::format("{}.{}", path, arm), settings)});
    }
  }
  require_usage(!out.empty(), "axes: a study needs an axis with an arm, this grid is empty");
  return out;
}

std::set<std::string> keys_set_by(const StudyAxis& axis) {
  std::set<std::string> keys;
  for (const StudyArm& arm : axis.arms) {
    for (const std::string& assignment : arm.overrides) keys.insert(key_of(assignment));
  }
  return keys;
}

// Which of the axes sets what this override does; null if none.
const StudyAxis* axis_of(const std::vector<StudyAxis>& axes, const std::string& key) {
  for (const StudyAxis& axis : axes) {
    for (const std::string& set : keys_set_by(axis)) {
      if (overlap(set, key)) return &axis;
    }
  }
  return nullptr;
}

void require_apart(const StudyRecipe& study) {
  for (size_t i = 1; i < study.axes.size(); ++i) {
    const std::vector<StudyAxis> before(study.axes.begin(), study.axes.begin() + i);
    for (const std::string& key : keys_set_by(study.axes[i])) {
      const StudyAxis* other = axis_of(before, key);
      require_usage(other == nullptr, "axes.{} and axes.{} both set {}; give each key to one axis",
                    other ? other->name : "", study.axes[i].name, key);
    }
  }
  for (const std::string& assignment : study.smoke) {
    const StudyAxis* axis = axis_of(study.axes, key_of(assignment));
    require_usage(axis == nullptr, "smoke: {} is set by axes.{}; set something else",
                  key_of(assignment), axis ? axis->name : "");
  }
}

void check_overrides(const StudyRecipe& study, const std::vector<std::string>& overrides) {
  for (const std::string& assignment : overrides) {
    const std::string key = key_of(assignment);
    require_usage(!overlap(key, "train.seed"),
                  "--set {}: seeds are an axis of every study; use "
                  "--seeds",
                  assignment);
    require_usage(!overlap(key, "name"), "--set {}: runs are named after their arms", assignment);
    const StudyAxis* axis = axis_of(study.axes, key);
    require_usage(axis == nullptr, "--set {}: the axis {} sets {}; change the study's file instead",
                  assignment, axis ? axis->name : "", key);
  }
}

int64_t count_runs(const StudyRecipe& study, int64_t seeds) {
  int64_t count = seeds;
  for (const StudyAxis& axis : study.axes) {
    count *= std::ssize(axis.arms);
    require_usage(count <= kMostRuns, "axes: the grid has more than {} runs", kMostRuns);
  }
  return count;
}

// The run at `index` of the grid, in which later axes change faster.
StudyRun make_run(const StudyRecipe& study, const GridOptions& options, int64_t index,
                  int64_t seed) {
  std::vector<const StudyArm*> arms;
  for (auto axis = study.axes.rbegin(); axis != study.axes.rend(); ++axis) {
    arms.insert(arms.begin(), &axis->arms[size_t(index % std::ssize(axis->arms))]);
    index /= std::ssize(axis->arms);
  }
  StudyRun run;
  std::vector<std::string> overrides;
  const auto add = [&](const std::vector<std::string>& more) {
    overrides.insert(overrides.end(), more.begin(), more.end());
  };
  if (options.smoke) add(study.smoke);
  for (const StudyArm* arm : arms) {
    run.arms.push_back(arm->name);
    run.name += arm->name + "-";
    add(arm->overrides);
  }
  add(options.overrides);
  run.name += fmt::format("seed{}", seed);
  require_usage(run.name.size() <= kLongestRunName,
                "run {}: a name of {} characters is too long for a folder; shorten those of arms",
                run.name, run.name.size());
  Json recipe = parse_json(study.base, "base");
  try {
    apply_overrides(recipe, overrides);
    recipe["name"] = run.name;
    recipe["train"]["seed"] = seed;
    run.recipe = parse_recipe(recipe);
  } catch (const UsageError& error) {
    fail_usage("run {}: {}", run.name, error.what());
  }
  return run;
}

// By name and by recipe.
void require_distinct(const std::vector<StudyRun>& runs) {
  std::map<std::string, const StudyRun*> names, recipes;
  for (const StudyRun& run : runs) {
    require_usage(names.emplace(run.name, &run).second,
                  "axes: two runs are named {}; rename an arm", run.name);
    Json recipe = recipe_to_json(run.recipe);
    recipe.erase("name");
    const auto [same, is_new] = recipes.emplace(recipe.dump(), &run);
    require_usage(is_new, "axes: the runs {} and {} have the same recipe; leave one arm out",
                  same->second->name, run.name);
  }
}

}  // namespace

StudyRecipe read_study(const fs::path& file) {
  Json json = read_json(file);
  try {
    if (!json.is_object()) detail::wrong_type("study", "an object", json);
    for (const char* key : {"name", "question", "base", "axes"}) {
      require_usage(json.contains(key), "it has no \"{}\"", key);
    }
    if (json["base"].is_string()) {
      json["base"] = read_json(file.parent_path() / json["base"].get<std::string>());
    }
    StudyFile read;
    read_config(json, "", read);
    check_name("name", read.name);
    check_seeds(read.seeds);
    StudyRecipe study = {.name = read.name,
                         .question = one_line(read.question),
                         .base = read.base.dump(),
                         .axes = read_axes(read.axes),
                         .seeds = read.seeds,
                         .smoke = read_overrides("smoke", read.smoke)};
    require_apart(study);
    return study;
  } catch (const UsageError& error) {
    fail_usage("{}: {}", file.string(), error.what());
  }
}

std::vector<StudyRun> plan_runs(const StudyRecipe& study, const GridOptions& options) {
  check_overrides(study, options.overrides);
  const int64_t seeds = options.seeds.value_or(study.seeds);
  check_seeds(seeds);
  const int64_t arms = count_runs(study, seeds) / seeds;
  std::vector<StudyRun> runs;
  for (int64_t seed = 1; seed <= seeds; ++seed) {
    for (int64_t arm = 0; arm < arms; ++arm) runs.push_back(make_run(study, options, arm, seed));
  }
  require_distinct(runs);
  return runs;
}

}  // namespace attnres
