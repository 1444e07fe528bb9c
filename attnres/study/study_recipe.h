// A study: a grid of training runs, read from a JSON file of recipes/studies/.
//
//   {
//     "name": "block-size",
//     "question": "How does the loss depend on the block size?",   one line
//     "base": "../tiny-residual.json",            beside this file; or a recipe itself
//     "axes": {
//       "mixing": {                                an axis, and its arms:
//         "residual": {"model.depth_mixing": {"type": "residual"}},
//         "block4": {"model.depth_mixing": {"type": "block_attn_res", "block_size": 4}}
//       }
//     },
//     "seeds": 3,                                  the last axis: train.seed = 1, 2, 3
//     "smoke": {"train.steps": 4}                  what makes every run tiny, to try the study out
//   }
//
// The keys that arms set are those of `train --set`. Every combination of one arm of each axis with
// each seed is a run, named after them: "block4-seed1". Runs with one seed see the same batches in
// the same order, and start equal in all that their models share, so that they are compared in
// pairs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "attnres/support/json.h"
#include "attnres/train/recipe.h"

namespace attnres {

struct StudyArm {
  std::string name;
  std::vector<std::string> overrides;  // "train.steps=4", as apply_overrides takes them
};

struct StudyAxis {
  std::string name;
  std::vector<StudyArm> arms;  // at least one
};

struct StudyRecipe {
  std::string name, question;
  std::string base;             // a recipe, as JSON
  std::vector<StudyAxis> axes;  // at least one
  int64_t seeds = 1;
  std::vector<std::string> smoke;  // overrides
};

// Throws Error where the file, or that of the base, cannot be read, and UsageError naming the key
// that is unknown, missing or of the wrong type, an axis without arms, a name that cannot be a
// file's, and what two axes set, which the later would undo.
StudyRecipe read_study(const std::filesystem::path& file);

struct StudyRun {
  std::string name;               // of the run, its recipe and its folder
  std::vector<std::string> arms;  // by name, one of each axis
  Recipe recipe;
};

struct GridOptions {
  std::vector<std::string> overrides = {};  // for every run, as of `train --set`
  std::optional<int64_t> seeds = {};        // in place of the study's
  bool smoke = false;
};

// The whole grid, seed by seed: every arm has its first run before any has its second.
// Throws UsageError, naming the run, where its recipe is none; where two runs have one name, or one
// recipe; and for an override of what an axis sets.
std::vector<StudyRun> plan_runs(const StudyRecipe& study, const GridOptions& options = {});

}  // namespace attnres
