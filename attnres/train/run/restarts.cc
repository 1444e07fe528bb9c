#include "attnres/train/run/restarts.h"

#include <fmt/core.h>

#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/train/run_folder/checkpoint.h"
#include "attnres/train/run_folder/run_folder.h"

namespace attnres {

void count_restart(const TrainJob& job, TrainObserver& observer) {
  const RunPaths run{job.out};
  const int64_t most = job.restarts.value();
  Json record = read_run_json(run);
  require(!record.contains("diverged"),
          "{}: this run diverged, and would again, so --restarts does not go on with it; run.json "
          "says what happened, and --resume tries once more",
          run.folder.string());
  const int64_t step = path_exists(run.last()) ? read_training_state(run.last()).step : 0;
  if (step >= job.recipe.train.steps) return;
  const Json before = record.value("restarts", Json::object());
  const bool got_further = before.value("step", Json()) != Json(step);
  const int64_t times =
      (got_further ? 0 : whole_number(before.value("times", Json())).value_or(0)) + 1;
  require(times <= most,
          "{}: went on {} from step {} without getting to another checkpoint: look how the last "
          "one ended; --resume goes on once more",
          run.folder.string(), counted(most, "time"), step);
  record["restarts"] = {{"step", step}, {"times", times}};
  write_file(run.run_json(), record.dump(2) + "\n");
  observer.on_message(fmt::format("restart {} of {} from step {}", times, most, step));
}

}  // namespace attnres
