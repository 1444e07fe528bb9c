// How a run gets to its first step: begun in an empty folder, or taken up where it stopped.
#pragma once

#include <memory>

#include "attnres/support/file.h"
#include "attnres/train/run/run_processes.h"
#include "attnres/train/text/run_text.h"
#include "attnres/train/train_job.h"
#include "attnres/train/train_observer.h"

namespace attnres {

// What can be seen to fail before the text is read, which can take long: the folder, memory, disk.
// Locks the run that the job goes on with, and repairs its checkpoints; null where there is none.
std::unique_ptr<FolderLock> prepare_run(const TrainJob& job, TrainObserver& observer);

RunText read_text(const TrainJob& job, TrainObserver& observer);

// The tokenizer that a new run takes as it is, loaded unless the job has it; null where one is
// trained. Throws Error where nothing says which .bin files are of.
std::shared_ptr<const Tokenizer> given_tokenizer(const TrainJob& job);

// Goes on with the run that was locked, or begins one and locks it, by these processes, whose model
// it makes. The first that writes into the folder.
std::unique_ptr<FolderLock> start_run(const TrainJob& job, const RunText& text,
                                      std::unique_ptr<FolderLock> lock, TrainObserver& observer,
                                      RunProcesses& processes);

}  // namespace attnres
