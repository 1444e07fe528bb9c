// What a run of a study begins with that does not begin anew.
#pragma once

#include <filesystem>

#include "attnres/study/study_folder.h"

namespace attnres {

// The model directory for `train --from`: the last weights of the run that it begins with, whose
// recipe is `before` and which is done; where the two mix depth in different ways, these
// retrofitted (model/retrofit.h), which are written to StudyPaths::start. Throws Error where they
// cannot be read or written.
std::filesystem::path weights_to_begin_with(const StudyPaths& paths, const StudyRun& run,
                                            const Recipe& before);

}  // namespace attnres
