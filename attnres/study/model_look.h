// What a study asks of each of its models once it is trained: a command of the program, whose JSON
// is kept in the run's folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "attnres/study/study_grid.h"

namespace attnres {

struct ModelLook {
  // The format of weights in which the model is scored; empty where it is inspected.
  std::string weights;

  std::string file_name() const;  // "inspection.json", "loss-q8_0.json"
  std::string done() const;       // "inspected", "scored with q8_0 weights"
  // `attnres eval` of what training validates with, or `attnres inspect --all`; `folder` is the
  // run's.
  std::vector<std::string> command(const StudyRun& run, const std::filesystem::path& folder) const;
};

// By the keys "inspect" and "weights"; with any format also f32, which the others are compared
// with.
std::vector<ModelLook> model_looks(const StudyRecipe& study);

}  // namespace attnres
