// What there is to say, and to do, where a run's loss is no number.
#pragma once

#include <cstdint>

#include "attnres/train/step/training_step.h"
#include "attnres/train/text/run_text.h"
#include "attnres/train/train_job.h"

namespace attnres {

// The rows of a step, counted from 1, that are broken with these weights. Leaves no gradients.
BrokenRows find_broken_rows(const Transformer& model, Optimizer& optimizer,
                            const TrainBatches& batches, const TrainConfig& config, int64_t step);

// Throws Diverged: why the step failed, of rows of the data where they are, which checkpoint is the
// last good one, and how a new run goes on from there. The run's folder says the same (run.json).
[[noreturn]] void fail_diverged(const TrainJob& job, const RunText& text, int64_t step,
                                const Diverged& why);

}  // namespace attnres
