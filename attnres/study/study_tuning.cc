#include "attnres/study/study_tuning.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/support/config.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

constexpr size_t kSmokeValues = 2;

// The keys of "tune" but "values".
struct TuningFile {
  std::string key, axis, arm;
  bool own = true;
  Json set = Json::object();

  template <class V>
  void visit(V& v) {
    v("key", key, "the setting, for example train.learning_rate", required());
    v("axis", axis, "the axis whose arms have in common what is best for `arm`");
    v("arm", arm, "one of its arms, with `axis`");
    v("own", own,
      "whether the arms of `axis` are trained with what is best for themselves, too: a last axis, "
      "rate");
    v("set", set, "recipe keys of the short runs, over those of arms");
  }
};

std::vector<std::string> read_values(const Json& json) {
  if (!json.is_array()) detail::wrong_type("tune.values", "a list of numbers", json);
  std::vector<Json> values(json.begin(), json.end());
  for (const Json& value : values) {
    if (!value.is_number()) detail::wrong_type("tune.values", "a list of numbers", value);
  }
  std::sort(values.begin(), values.end(),
            [](const Json& a, const Json& b) { return a.get<double>() < b.get<double>(); });
  std::vector<std::string> texts;
  for (const Json& value : values) texts.push_back(value.dump());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  require_usage(texts.size() <= kMostTunedValues,
                "tune.values: expected {} numbers at most, got {}", kMostTunedValues, texts.size());
  require_usage(texts.size() >= 2, "tune.values: expected two different numbers or more, got {}",
                shown(json));
  return texts;
}

void check_key(const StudyRecipe& study, const std::string& key) {
  require_usage(!overlap(key, "name") && !overlap(key, "train.seed"),
                "tune.key: {} belongs to the grid; tune another setting", one_line(key));
  const StudyAxis* axis = axis_that_sets(study.axes, key);
  require_usage(axis == nullptr, "tune.key: {} is set by axes.{}; set it there or tune it", key,
                axis ? axis->name : "");
}

void check_axis(const StudyRecipe& study, const StudyTuning& tune) {
  require_usage(tune.axis.empty() == tune.arm.empty(),
                "tune: \"axis\" and \"arm\" belong together; give both or neither");
  if (tune.axis.empty()) return;
  require_arm(study, "tune", tune.axis, tune.arm);
  require_usage(!tune.own || study.find(kRateAxis) == nullptr,
                "axes.{}: tune adds an axis of that name; rename it", kRateAxis);
}

std::vector<std::string> values_tried(const StudyTuning& tune, bool smoke) {
  std::vector<std::string> values = tune.values;
  if (smoke) values.resize(std::min(values.size(), kSmokeValues));
  return values;
}

// Whether trials of these arms themselves choose something.
bool is_tried(const StudyRecipe& study, const std::vector<std::string>& arms) {
  return study.tune->axis.empty() || study.tune->own || common_arms(study, arms) == arms;
}

Json value_or_null(const TunedValue& tuned) {
  return tuned.is_known && !tuned.value.empty() ? Json::parse(tuned.value) : Json();
}

Json arms_json(const StudyRecipe& study, const std::vector<std::string>& arms) {
  Json json = Json::object();
  for (size_t i = 0; i < arms.size(); ++i) json[study.axes[i].name] = arms[i];
  return json;
}

}  // namespace

std::vector<ConfigKey> tuning_keys() {
  std::vector<ConfigKey> keys = list_keys(TuningFile());
  for (ConfigKey& key : keys) {
    if (key.name == "set") key.type = KeyType::recipe_keys;
  }
  keys.insert(keys.begin() + 1, {.name = "values",
                                 .type = KeyType::numbers,
                                 .meaning = "what is tried: two different numbers or more",
                                 .limits = required()});
  return keys;
}

StudyTuning read_tuning(const StudyRecipe& study, const Json& json) {
  Json rest = json;
  const Json values = rest.contains("values") ? rest["values"] : Json();
  rest.erase("values");
  TuningFile file;
  read_config(rest, "tune", file);
  const StudyTuning tune = {.key = file.key,
                            .values = read_values(values),
                            .axis = file.axis,
                            .arm = file.arm,
                            .own = file.own,
                            .overrides = read_overrides("tune.set", file.set)};
  check_key(study, tune.key);
  for (const std::string& assignment : tune.overrides) {
    require_usage(!overlap(key_of(assignment), tune.key), "tune.set: {} is what is tuned",
                  key_of(assignment));
  }
  check_axis(study, tune);
  for (const StudyAxis& axis : study.axes) {
    for (const StudyArm& arm : axis.arms) {
      require_usage(arm.from.empty(),
                    "tune: axes.{}.{} begins with the weights of another run, which trials cannot; "
                    "leave tune out",
                    axis.name, arm.name);
    }
  }
  return tune;
}

std::string Trial::name() const {
  std::string name = "trial-";
  for (const std::string& arm : arms) name += arm + "-";
  return name + value;
}

std::vector<Trial> plan_trials(const StudyRecipe& study, bool smoke) {
  std::vector<Trial> trials;
  if (!study.tune) return trials;
  for (const std::vector<std::string>& arms : combinations(study.axes)) {
    if (!is_tried(study, arms)) continue;
    for (const std::string& value : values_tried(*study.tune, smoke)) {
      trials.push_back({arms, value});
    }
  }
  return trials;
}

TunedValue own_value(const StudyRecipe& study, const std::vector<std::string>& arms, bool smoke,
                     const TrialLosses& losses) {
  TunedValue tuned;
  tuned.is_known = true;
  const std::vector<std::string> values = values_tried(*study.tune, smoke);
  double best = INFINITY;
  for (const std::string& value : values) {
    const std::string name = tuned.trials.emplace_back(Trial{arms, value}.name());
    const auto loss = losses.find(name);
    if (loss == losses.end()) {
      tuned.is_known = false;
    } else if (loss->second < best) {
      best = loss->second;
      tuned.value = value;
    }
  }
  if (!tuned.is_known) tuned.value.clear();
  tuned.at_end = values.size() > 2 && !tuned.value.empty() &&
                 (tuned.value == values.front() || tuned.value == values.back());
  return tuned;
}

std::vector<std::string> common_arms(const StudyRecipe& study, std::vector<std::string> arms) {
  for (size_t i = 0; i < arms.size(); ++i) {
    if (study.axes[i].name == study.tune->axis) arms[i] = study.tune->arm;
  }
  return arms;
}

Json tuning_json(const StudyRecipe& study, bool smoke, const TrialLosses& losses) {
  if (!study.tune) return {};
  Json values = Json::array(), trials = Json::array(), chosen = Json::array();
  for (const std::string& value : values_tried(*study.tune, smoke)) {
    values.push_back(Json::parse(value));
  }
  for (const Trial& trial : plan_trials(study, smoke)) {
    const auto loss = losses.find(trial.name());
    const bool is_finite = loss != losses.end() && std::isfinite(loss->second);
    trials.push_back({{"arms", arms_json(study, trial.arms)},
                      {"value", Json::parse(trial.value)},
                      {"final_val_loss", is_finite ? Json(loss->second) : Json()}});
  }
  for (const std::vector<std::string>& arms : combinations(study.axes)) {
    const TunedValue common = own_value(study, common_arms(study, arms), smoke, losses);
    const TunedValue own =
        is_tried(study, arms) ? own_value(study, arms, smoke, losses) : TunedValue();
    chosen.push_back({{"arms", arms_json(study, arms)},
                      {"common", value_or_null(common)},
                      {"own", value_or_null(own)}});
  }
  return {{"key", study.tune->key}, {"values", values}, {"trials", trials}, {"chosen", chosen}};
}

std::vector<std::string> tuning_notes(const StudyRecipe& study, bool smoke,
                                      const TrialLosses& losses) {
  std::vector<std::string> notes;
  if (!study.tune) return notes;
  for (const std::vector<std::string>& arms : combinations(study.axes)) {
    if (!is_tried(study, arms)) continue;
    const TunedValue tuned = own_value(study, arms, smoke, losses);
    if (!tuned.at_end) continue;
    std::string name;
    for (const std::string& arm : arms) name += (name.empty() ? "" : "-") + arm;
    notes.push_back(
        fmt::format("{}: the best {} is {}, at the end of those tried; widen the values of tune",
                    name, study.tune->key, tuned.value));
  }
  return notes;
}

}  // namespace attnres
