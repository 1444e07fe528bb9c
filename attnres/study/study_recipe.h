// A study: a grid of training runs, read from a JSON file of recipes/studies/.
//
//   {
//     "name": "block-size",
//     "question": "How does the loss depend on the block size?",   one line
//     "claim": "Fig. 6: ...",                      what the report says of it
//     "base": "../tiny-residual.json",            beside this file; or a recipe itself
//     "axes": {
//       "mixing": {                                an axis, and its arms:
//         "residual": {"model.depth_mixing": {"type": "residual"}},
//         "block4": {"model.depth_mixing": {"type": "block_attn_res", "block_size": 4}}
//       }
//     },
//     "baseline": {"mixing": "residual"},          what the arms of an axis are compared with
//     "seeds": 3,                                  the last axis: train.seed = 1, 2, 3
//     "tune": {"key": "train.learning_rate", ...}, see StudyTuning
//     "figures": [{"kind": "curve", "x": "mixing"}],
//     "inspect": true,                             look into the models that were trained
//     "weights": ["q8_0"],                         score them with weights in these formats too
//     "smoke": {"train.steps": 4},                 what makes every run tiny, to try the study out
//     "chosen": {"sentences": ["..."]}             of `attnres compare`: why this base
//   }
//
// The keys that arms set are those of `train --set`. Every combination of one arm of each axis with
// each seed is a run, named after them: "block4-seed1" (study_grid.h). Runs with one seed see the
// same batches in the same order, and start equal in all that their models share, so that they are
// compared in pairs. An arm may also say "from": ARM, another of its axis: its runs then begin with
// the weights that the runs of that arm end with, all else equal.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attnres/support/config_key.h"
#include "attnres/support/json.h"

namespace attnres {

inline constexpr int64_t kMostRuns = 10'000;  // of a grid
inline constexpr size_t kMostAxes = 32, kMostFigures = 100, kMostTunedValues = 100;

struct StudyArm {
  std::string name;
  std::vector<std::string> overrides;  // "train.steps=4", as apply_overrides takes them
  std::string from = {};               // an arm of the same axis; empty: runs begin anew
};

struct StudyAxis {
  std::string name;
  std::vector<StudyArm> arms;  // at least one

  // Null where it has no arm of that name.
  const StudyArm* find(const std::string& arm) const;
};

// A setting that the study itself chooses, by short runs of seed 1 before the others: trials.
//
//   "tune": {"key": "train.learning_rate", "values": [0.001, 0.003, 0.01],
//            "axis": "mixing", "arm": "residual", "own": true, "set": {"train.steps": 300}}
//
// Every value is tried in every combination of arms. Where an axis is named, the value that is best
// for its arm `arm` is common to all its arms, in each combination of the other axes; and the grid
// gets a last axis, "rate", with the arms "common" and "own", the value that is best for the arm
// itself. Without "own" there is no such axis, and only `arm` is tried. Without an axis every
// combination has the value that is best for it.
struct StudyTuning {
  std::string key;
  std::vector<std::string> values;  // as JSON, ascending
  std::string axis, arm;            // empty: none
  bool own = true;
  std::vector<std::string> overrides;  // of trials, over those of arms

  bool has_rate_axis() const { return !axis.empty() && own; }
};

inline constexpr const char* kRateAxis = "rate";
inline constexpr const char* kCommonRate = "common";
inline constexpr const char* kOwnRate = "own";

struct StudyRecipe {
  std::string name, question;
  std::string claim;                                          // empty: none
  std::string base;                                           // a recipe, as JSON
  std::vector<StudyAxis> axes;                                // at least one
  std::vector<std::pair<std::string, std::string>> baseline;  // axis, arm
  int64_t seeds = 1;
  std::optional<StudyTuning> tune;
  std::string figures = "[]";  // as JSON: a list, see study_figures.h
  bool inspect = false;
  std::vector<std::string> weights;  // formats
  std::vector<std::string> smoke;    // overrides
  // How `attnres compare` chose the base, as JSON: an object, or null. A study keeps it, and its
  // page shows its list "sentences".
  std::string chosen = "null";

  // Null where it has no axis of that name.
  const StudyAxis* find(const std::string& axis) const;
  // Axes of the grid: those of `axes`, and where the study tunes, "rate".
  std::vector<std::string> axis_names() const;
};

// Throws Error where the file, or that of the base, cannot be read, and UsageError naming the key
// that is unknown, missing or of the wrong type, an axis without arms, a name that cannot be a
// file's, arms that begin with each other in a circle or with one that is not there, and what two
// axes set, which the later would undo.
StudyRecipe read_study(const std::filesystem::path& file);

// Every key that a study's file may have, and what its definition says of it.
std::vector<ConfigKey> study_keys();

// The names of every combination of one arm of each axis; later axes change faster. Throws
// UsageError where there are more than kMostRuns.
std::vector<std::vector<std::string>> combinations(const std::vector<StudyAxis>& axes);

// The key of "train.steps=4".
std::string key_of(const std::string& assignment);
// Whether one key is the other, or a part of it: "model.depth_mixing", "model.depth_mixing.type".
bool overlap(const std::string& key, const std::string& other);
// Which of the axes sets what this key does; null if none.
const StudyAxis* axis_that_sets(const std::vector<StudyAxis>& axes, const std::string& key);

// Throw UsageError, with the place `path` in the file:
// unless so many can be trained;
void check_seeds(int64_t seeds);
// unless the study has this axis, and it this arm;
void require_arm(const StudyRecipe& study, const std::string& path, const std::string& axis,
                 const std::string& arm);
// unless it is an object of recipe keys, without those that name runs and seed them. Returns
// {"train.steps": 4} as "train.steps=4".
std::vector<std::string> read_overrides(const std::string& path, const Json& settings);

}  // namespace attnres
