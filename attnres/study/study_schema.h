// The schema of a study's file, by which editors complete and check it; see config_schema.h.
#pragma once

#include "attnres/support/json.h"

namespace attnres {

// The keys that arms, "smoke" and "tune" set are those of a recipe, each with its place
// ("train.steps"); of model.depth_mixing they are the settings of any mechanism.
Json study_schema();

}  // namespace attnres
