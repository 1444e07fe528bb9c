// What a study's page says of the learning rates that were tried.
#pragma once

#include <string>

#include "attnres/study/study_data.h"

namespace attnres {

// The rates chosen; where arms have another rate of their own than the common one, what their runs
// end at with it, against themselves at the common one; and the trials. HTML; empty where the
// learning rate was not tuned.
std::string tuning_section(const StudyData& data);

}  // namespace attnres
