// The table of arms: what each recipe's seeds reached, and whether they tell it from the baseline.
#pragma once

#include <string>
#include <vector>

#include "attnres/plots/page_parts.h"
#include "attnres/report/comparison.h"

namespace attnres {

// Whether there is something to say of seeds: an arm that has several.
bool has_seeds(const Comparison& comparison);

// A row for each arm, in their order: verdict, seeds, mean final loss, its deviation, and of the
// difference to the baseline mean, 95 % interval, p and the seeds that would tell
// kDifferenceToTell. Plain text. Where no arm is compared, only seeds, mean and deviation.
std::vector<TableColumn> arm_columns(const std::vector<Arm>& arms);

// How the columns were computed, in a few sentences of plain text; `baseline` names what arms are
// compared with, empty: nothing.
std::string arm_table_key(const std::string& baseline);
std::string arm_table_key(const Comparison& comparison);

}  // namespace attnres
