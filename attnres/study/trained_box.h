// The box of a study's page that says what was trained: model, text, steps, learning rate.
#pragma once

#include <string>

#include "attnres/study/study_data.h"

namespace attnres {

// From the recipes in the run folders. Where runs differ in a number, all that there are, or the
// least and the largest. Empty where no run has begun.
std::string trained_box(const StudyData& data);

}  // namespace attnres
