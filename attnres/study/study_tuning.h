// What a study tunes: the values that it tries, and which is best; see StudyTuning.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "attnres/study/study_recipe.h"

namespace attnres {

// "tune" of a study whose axes are read. Throws UsageError naming the key: where fewer than two
// different values are there to choose from, an axis or an override sets the key, the axis or its
// arm is unknown, or arms begin with the weights of others, whose trials could not.
StudyTuning read_tuning(const StudyRecipe& study, const Json& json);

// The keys of "tune".
std::vector<ConfigKey> tuning_keys();

// A short run that tries a value for a combination of arms.
struct Trial {
  std::vector<std::string> arms;  // one of each axis of the study
  std::string value;

  std::string name() const;  // "trial-block-w64-0.003"
};

// None where nothing is tuned. With `smoke`, the first two values alone are tried.
std::vector<Trial> plan_trials(const StudyRecipe& study, bool smoke);

// The final validation losses of trials that have ended, by name; infinite of one that diverged.
using TrialLosses = std::map<std::string, double>;

struct TunedValue {
  std::vector<std::string> trials;  // their names, by value
  bool is_known = false;            // all of them have ended
  std::string value = {};           // with the lowest loss, as JSON; empty where all diverged
  bool at_end = false;              // the least or the largest of three or more values
};

// The value that is best for this combination of arms itself.
TunedValue own_value(const StudyRecipe& study, const std::vector<std::string>& arms, bool smoke,
                     const TrialLosses& losses);

// The combination whose best value these arms have in common: with the arm that the study names on
// its axis; without an axis they themselves.
std::vector<std::string> common_arms(const StudyRecipe& study, std::vector<std::string> arms);

// For study.json: null where nothing is tuned, or {key, values, trials, chosen}. trials: a list of
// {arms, value, final_val_loss}, null of one that has not ended or diverged. chosen: a list of
// {arms, common, own}, values or null; where own equals common, the grid has no own run.
Json tuning_json(const StudyRecipe& study, bool smoke, const TrialLosses& losses);

// What to say of the choices: that the best value is the last of those that were tried.
std::vector<std::string> tuning_notes(const StudyRecipe& study, bool smoke,
                                      const TrialLosses& losses);

}  // namespace attnres
