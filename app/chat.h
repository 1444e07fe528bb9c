// A conversation in the terminal.
#pragma once

#include "app/generate_options.h"

namespace attnres {

// --chat: answers the lines of standard input. Ctrl-C ends an answer.
void chat(const GenerateOptions& options, GroupLeader* leader);

}  // namespace attnres
