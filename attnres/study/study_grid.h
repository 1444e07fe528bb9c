// The runs of a study: its trials, where it tunes a setting, and its grid.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attnres/study/study_tuning.h"
#include "attnres/train/recipe/recipe.h"

namespace attnres {

struct StudyRun {
  std::string name;               // of the run, its recipe and its folder
  std::vector<std::string> arms;  // by name, one of each axis; trials have no arm of "rate"
  Recipe recipe;
  bool is_trial = false;
  std::string from = {};                // the run with whose last weights it begins; empty: anew
  std::vector<std::string> needs = {};  // runs that end before it begins: that one, or trials
  bool waits = false;                   // for trials that choose a setting, which the recipe lacks
  std::string obstacle = {};            // why it cannot be trained, whatever happens; empty: it can
};

struct GridOptions {
  std::vector<std::string> overrides = {};  // for every run, as of `train --set`
  std::optional<int64_t> seeds = {};        // in place of the study's
  bool smoke = false;                       // then one seed, unless `seeds` says more
};

// Trials first, then the grid seed by seed: every arm has its first run before any has its second.
// The settings that trials choose are those that `losses` tell; runs whose trials have not all
// ended wait. Throws UsageError, naming the run, where its recipe is none; where two runs have one
// name, or one recipe; where one cannot begin with the weights of the other; and for an override of
// what an axis sets or trials choose.
std::vector<StudyRun> plan_runs(const StudyRecipe& study, const GridOptions& options = {},
                                const TrialLosses& losses = {});

// Whether weights of a run with this recipe have to be retrofitted for the other's; see
// model/retrofit.h.
bool needs_retrofit(const Recipe& before, const Recipe& after);

}  // namespace attnres
