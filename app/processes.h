// Commands that several processes run together, started by mpirun or srun.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>

#include "app/options.h"
#include "attnres/infer/inference_model.h"
#include "attnres/parallel/communicator.h"

namespace attnres {

// Connects this process and those that were started with it. Where this build has no MPI rank 0
// throws Error, and the others end here.
std::unique_ptr<Communicator> start_processes();

// The processes that may run on the same processors share them: all of a machine, or those that
// their launcher has bound to one part of it.
void share_cpus(Communicator& world);

// Throws UsageError on rank 0, and ends the others, where several processes were started to run
// this command and it is one that each would run by itself.
void require_one_process(const CLI::App& command);

// Runs `command` by one process, or by several as a tensor group: rank 0 runs `lead` with what
// makes the model, by this process or by all, and the others follow with the parts that `load`
// gives them. Threads and device are set before.
void run_in_group(const CLI::App& command, const MachineOptions& machine,
                  const LoadTransformer& load,
                  const std::function<void(const MakeInferenceModel&)>& lead);

}  // namespace attnres
