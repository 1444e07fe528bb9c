#include "attnres/study/study_recipe.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "attnres/parameters/precision.h"
#include "attnres/study/study_figures.h"
#include "attnres/study/study_tuning.h"
#include "attnres/support/config.h"
#include "attnres/support/format.h"
#include "attnres/support/nearest.h"
#include "attnres/support/shell.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr size_t kLongestName = 100;  // of an arm

// The file's keys but "figures", with the base as it is used.
struct StudyFile {
  std::string name, question, claim;
  Json base = Json::object(), axes = Json::object(), baseline = Json::object();
  int64_t seeds = 1;
  Json tune = Json::object();
  bool inspect = false;
  std::vector<std::string> weights;
  Json smoke = Json::object(), chosen = Json::object();

  template <class V>
  void visit(V& v) {
    v("name", name, "what the study's folder is called where --out names none", required());
    v("question", question, "what it asks, in one line", required());
    v("claim", claim, "what the page shows it beside: of whom, and where");
    v("base", base, "the recipe of every run, as a file beside this one or itself", required());
    v("axes", axes, "the grid: every combination of one arm of each axis is trained", required());
    v("baseline", baseline, "what the arms of an axis are compared with");
    v("seeds", seeds, "runs of a combination, the last axis: train.seed = 1, 2, ..",
      from_to(1, kMostRuns));
    v("tune", tune, "a setting that the study itself chooses, by short runs of seed 1");
    v("inspect", inspect, "whether the page looks into the models that were trained");
    v("weights", weights, "formats of weights in which trained models are scored too",
      one_of_names(weight_format_names()));
    v("smoke", smoke, "recipe keys that make every run tiny, for --smoke");
    v("chosen", chosen, "of attnres compare: how it chose the base");
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

std::vector<std::string> names_of(const std::vector<StudyArm>& arms) {
  std::vector<std::string> names;
  for (const StudyArm& arm : arms) names.push_back(arm.name);
  return names;
}

StudyArm read_arm(const std::string& path, const std::string& name, Json settings) {
  StudyArm arm = {.name = name, .overrides = {}};
  if (settings.is_object() && settings.contains("from")) {
    if (!settings["from"].is_string()) {
      detail::wrong_type(path + ".from", "the name of an arm", settings["from"]);
    }
    arm.from = settings["from"];
    settings.erase("from");
  }
  arm.overrides = read_overrides(path, settings);
  return arm;
}

// Throws UsageError unless every arm begins anew in the end.
void check_chains(const std::string& path, const StudyAxis& axis) {
  std::set<const StudyArm*> ends;  // that are known to begin anew in the end
  for (const StudyArm& arm : axis.arms) {
    if (arm.from.empty()) continue;
    require_usage(axis.find(arm.from) != nullptr,
                  "{}.{}: from: the axis has no arm {}; the nearest is {}", path, arm.name,
                  one_line(arm.from), nearest(arm.from, names_of(axis.arms)));
    const StudyArm* at = &arm;
    for (size_t links = 0; at != nullptr && !at->from.empty() && !ends.contains(at); ++links) {
      require_usage(links < axis.arms.size(),
                    "{}.{}: from: these arms begin with each other in a circle; let one of them "
                    "begin anew",
                    path, arm.name);
      at = axis.find(at->from);
    }
    ends.insert(&arm);
  }
}

std::vector<StudyAxis> read_axes(const Json& axes) {
  require_usage(axes.size() <= kMostAxes, "axes: a study has {} axes at most, this has {}",
                kMostAxes, axes.size());
  std::vector<StudyAxis> out;
  std::string chained;
  int64_t combinations = 1;
  for (const auto& [name, arms] : axes.items()) {
    const std::string path = "axes." + name;
    check_name("axes", name);
    if (!arms.is_object()) detail::wrong_type(path, "an object of arms", arms);
    require_usage(!arms.empty(), "{}: an axis without arms has no runs; give it some", path);
    combinations *= std::ssize(arms);
    require_usage(combinations <= kMostRuns, "axes: the grid has more than {} runs", kMostRuns);
    StudyAxis& axis = out.emplace_back(StudyAxis{name, {}});
    for (const auto& [arm, settings] : arms.items()) {
      check_name(path, arm);
      axis.arms.push_back(read_arm(fmt::format("{}.{}", path, arm), arm, settings));
    }
    check_chains(path, axis);
    if (std::all_of(axis.arms.begin(), axis.arms.end(),
                    [](const StudyArm& arm) { return arm.from.empty(); })) {
      continue;
    }
    require_usage(chained.empty(), "{} and {}: only one axis may have arms with from", chained,
                  path);
    chained = path;
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

void require_apart(const std::vector<StudyAxis>& axes) {
  std::vector<std::set<std::string>> keys;  // by axis
  for (const StudyAxis& axis : axes) {
    const std::set<std::string>& own = keys.emplace_back(keys_set_by(axis));
    for (const std::string& key : own) {
      for (size_t i = 0; i + 1 < keys.size(); ++i) {
        require_usage(std::none_of(keys[i].begin(), keys[i].end(),
                                   [&](const std::string& other) { return overlap(other, key); }),
                      "axes.{} and axes.{} both set {}; give each key to one axis", axes[i].name,
                      axis.name, key);
      }
    }
  }
}

std::vector<std::pair<std::string, std::string>> read_baseline(const StudyRecipe& study,
                                                               const Json& baseline) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [axis, arm] : baseline.items()) {
    if (!arm.is_string()) detail::wrong_type("baseline." + axis, "the name of an arm", arm);
    require_arm(study, "baseline", axis, arm);
    out.emplace_back(axis, arm);
  }
  return out;
}

// The list, as JSON.
std::string read_figures(const Json& figures) {
  if (!figures.is_array()) detail::wrong_type("figures", "a list of objects", figures);
  require_usage(figures.size() <= kMostFigures, "figures: a page has {} at most, this has {}",
                kMostFigures, figures.size());
  for (size_t i = 0; i < figures.size(); ++i) {
    const std::string path = fmt::format("figures[{}]", i);
    const Json& figure = figures[i];
    require_usage(figure.is_object() && figure.contains("kind") && figure["kind"].is_string(),
                  "{}: expected an object with a \"kind\", got {}", path, shown(figure));
    const std::string kind = figure["kind"];
    const auto& known = figure_kinds();
    require_usage(std::find(known.begin(), known.end(), kind) != known.end(),
                  "{}: unknown kind {}: the nearest known kind is {}", path, one_line(kind),
                  nearest(kind, known));
  }
  return figures.dump();
}

StudyRecipe read_parts(const StudyFile& file, const Json& figures) {
  check_name("name", file.name);
  check_seeds(file.seeds);
  StudyRecipe study = {.name = file.name,
                       .question = one_line(file.question),
                       .claim = file.claim,
                       .base = file.base.dump(),
                       .axes = read_axes(file.axes),
                       .baseline = {},
                       .seeds = file.seeds,
                       .tune = {},
                       .figures = read_figures(figures),
                       .inspect = file.inspect,
                       .weights = file.weights,
                       .smoke = read_overrides("smoke", file.smoke),
                       .chosen = file.chosen.empty() ? "null" : file.chosen.dump()};
  require_apart(study.axes);
  study.baseline = read_baseline(study, file.baseline);
  if (!file.tune.empty()) study.tune = read_tuning(study, file.tune);
  return study;
}

// Takes a key out of an object; null where it is not there.
Json take(Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return {};
  Json value = *found;
  json.erase(key);
  return value;
}

}  // namespace

const StudyArm* StudyAxis::find(const std::string& arm) const {
  const auto found = std::find_if(arms.begin(), arms.end(),
                                  [&](const StudyArm& candidate) { return candidate.name == arm; });
  return found == arms.end() ? nullptr : &*found;
}

const StudyAxis* StudyRecipe::find(const std::string& axis) const {
  const auto found = std::find_if(
      axes.begin(), axes.end(), [&](const StudyAxis& candidate) { return candidate.name == axis; });
  return found == axes.end() ? nullptr : &*found;
}

std::vector<std::string> StudyRecipe::axis_names() const {
  std::vector<std::string> names;
  for (const StudyAxis& axis : axes) names.push_back(axis.name);
  if (tune && tune->has_rate_axis()) names.emplace_back(kRateAxis);
  return names;
}

std::vector<std::vector<std::string>> combinations(const std::vector<StudyAxis>& axes) {
  std::vector<std::vector<std::string>> all = {{}};
  for (const StudyAxis& axis : axes) {
    require_usage(std::ssize(all) * std::ssize(axis.arms) <= kMostRuns,
                  "axes: the grid has more than {} runs", kMostRuns);
    std::vector<std::vector<std::string>> longer;
    for (const std::vector<std::string>& arms : all) {
      for (const StudyArm& arm : axis.arms) {
        longer.push_back(arms);
        longer.back().push_back(arm.name);
      }
    }
    all = std::move(longer);
  }
  return all;
}

std::string key_of(const std::string& assignment) {
  return assignment.substr(0, assignment.find('='));
}

bool overlap(const std::string& key, const std::string& other) {
  const auto& [shorter, longer] =
      std::minmax(key, other, [](const auto& a, const auto& b) { return a.size() < b.size(); });
  return longer.starts_with(shorter) &&
         (longer.size() == shorter.size() || longer[shorter.size()] == '.');
}

const StudyAxis* axis_that_sets(const std::vector<StudyAxis>& axes, const std::string& key) {
  for (const StudyAxis& axis : axes) {
    for (const std::string& set : keys_set_by(axis)) {
      if (overlap(set, key)) return &axis;
    }
  }
  return nullptr;
}

void check_seeds(int64_t seeds) {
  require_usage(seeds >= 1 && seeds <= kMostRuns, "seeds: expected 1 to {}, got {}", kMostRuns,
                seeds);
}

void require_arm(const StudyRecipe& study, const std::string& path, const std::string& axis,
                 const std::string& arm) {
  const StudyAxis* found = study.find(axis);
  std::vector<std::string> names;
  for (const StudyAxis& known : study.axes) names.push_back(known.name);
  require_usage(found != nullptr, "{}: there is no axis {}; the nearest is {}", path,
                one_line(axis), nearest(axis, names));
  require_usage(found->find(arm) != nullptr, "{}: axes.{} has no arm {}; the nearest is {}", path,
                axis, one_line(arm), nearest(arm, names_of(found->arms)));
}

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

StudyRecipe read_study(const fs::path& file) {
  Json json = read_json(file);
  try {
    if (!json.is_object()) detail::wrong_type("study", "an object", json);
    require_usage(!json.contains("study") || !json.contains("runs"),
                  "this is the record of a study that has begun, not its file. The command that "
                  "began it goes on with it; attnres watch {} shows how far it is",
                  for_shell(file.has_parent_path() ? file.parent_path().string() : "."));
    require_usage(json.contains("axes") || !(json.contains("model") || json.contains("train")),
                  "this is the recipe of one run, not a study, which has \"axes\"; give it to "
                  "attnres train --recipe");
    if (json.contains("base") && json["base"].is_string()) {
      json["base"] = read_json(file.parent_path() / json["base"].get<std::string>());
    }
    const Json figures = take(json, "figures");
    StudyFile read;
    read_config(json, "", read);
    return read_parts(read, figures.is_null() ? Json::array() : figures);
  } catch (const UsageError& error) {
    fail_usage("{}: {}", file.string(), error.what());
  }
}

std::vector<ConfigKey> study_keys() {
  const auto any_of = [](const char* name, KeyType type, const char* meaning) {
    return ConfigKey{.name = name, .type = type, .meaning = meaning};
  };
  std::vector<ConfigKey> keys = list_keys(StudyFile());
  for (ConfigKey& key : keys) {
    if (key.name == "base") key.type = KeyType::file_or_recipe;
    if (key.name == "smoke") key.type = KeyType::recipe_keys;
    if (key.name == "tune") key.keys = tuning_keys();
    if (key.name == "baseline") key.keys = {any_of("<axis>", KeyType::text, "one of its arms")};
    if (key.name == "chosen") {
      key.keys = {any_of("sentences", KeyType::texts, "shown on the page"),
                  any_of("<other>", KeyType::any, "kept as it is")};
    }
    if (key.name != "axes") continue;
    ConfigKey arm = any_of("<arm>", KeyType::recipe_keys, "recipe keys that its runs have");
    arm.keys = {any_of("from", KeyType::text,
                       "another arm of the axis, with whose weights its runs begin")};
    key.keys = {any_of("<axis>", KeyType::object, "its arms, by name")};
    key.keys[0].keys = {arm};
  }
  ConfigKey figures = any_of("figures", KeyType::objects, "figures of the page, in this order");
  figures.standard = "[]";
  figures.keys = {any_of("kind", KeyType::text, "what it shows"),
                  any_of("x", KeyType::text, "of curve, forest and scaling_law: the axis along it"),
                  any_of("<other>", KeyType::any, "without effect")};
  figures.keys[0].limits = one_of_names(figure_kinds());
  figures.keys[0].limits.required = true;
  keys.push_back(figures);
  return keys;
}

}  // namespace attnres
