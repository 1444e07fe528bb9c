// A conversation in the terminal.
#pragma once

#include "app/generate_options.h"
#include "attnres/infer/inference_model.h"

namespace attnres {

// --chat: answers the lines of standard input. Ctrl-C ends an answer.
void chat(const GenerateOptions& options, const MakeInferenceModel& make);

}  // namespace attnres
