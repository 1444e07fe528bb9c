// A study on the terminal, for the subcommands that are one.
#pragma once

#include "attnres/study/study.h"

namespace attnres {

// A line for each run that was chosen: its state, and what it takes. Writes nothing. Throws as
// look_ahead.
void print_plan(const StudyJob& job);

// Runs it with a line of progress, until the user stops it, and prints what it reached, as
// study.json with `as_json`. Throws as run_study; then Interrupted where the user stopped it, and
// Error where runs failed.
void show_study(const StudyJob& job, bool as_json);

}  // namespace attnres
