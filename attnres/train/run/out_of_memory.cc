#include "attnres/train/run/out_of_memory.h"

#include <string>

#include "attnres/support/compute_device.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/memory.h"
#include "attnres/support/program.h"
#include "attnres/support/shell.h"
#include "attnres/train/run_folder/checkpoint.h"
#include "attnres/train/run_folder/run_folder.h"

namespace attnres {
namespace {

// What makes a step of these settings take less memory: its batch in more parts, or recomputation.
std::string smaller(const TrainConfig& train) {
  for (int64_t parts = 2 * train.accumulate; parts <= train.batch_size; ++parts) {
    if (train.batch_size % parts == 0) return fmt::format("train.accumulate={}", parts);
  }
  return train.recompute ? "train.context=" + std::to_string(train.context / 2)
                         : "train.recompute=true";
}

}  // namespace

void fail_out_of_memory(const TrainJob& job, int64_t step, const std::exception& why) {
  const RunPaths paths{job.out};
  const c10::Device device = compute_device();
  const std::string what =
      fmt::format("step {}: {}", step, describe_out_of_memory(why, device_memory(device).name));
  const std::string setting = smaller(job.recipe.train);
  if (!path_exists(paths.last())) {
    fail("{}; there is no checkpoint yet. Begin a new run that needs less, with --set {}", what,
         setting);
  }
  fail(
      "{}; {} is whole, of step {}. Where other programs had the memory, {} train --resume --out "
      "{}{} goes on; else a new run may begin with these weights and need less: {} train --from {} "
      "--set {} --out NEW",
      what, paths.last().string(), read_training_state(paths.last()).step, program(),
      for_shell(job.out.string()), device.is_cpu() ? "" : " --device " + device.str(), program(),
      for_shell(paths.last().string()), setting);
}

}  // namespace attnres
