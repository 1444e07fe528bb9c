// Continuing many prompts of a file at once.
#pragma once

#include "app/generate_options.h"
#include "attnres/infer/inference_model.h"

namespace attnres {

// --prompts to --out. Every line is checked before anything is computed; Ctrl-C keeps what is done.
void generate_prompts(const GenerateOptions& options, const MakeInferenceModel& make);

}  // namespace attnres
