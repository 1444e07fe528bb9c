#include "attnres/train/run/step_trace.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <set>
#include <utility>

#include "attnres/support/file.h"

namespace attnres {
namespace {

namespace profiler = torch::profiler::impl;

// The first also allocates, and chooses among kernels.
constexpr int64_t kUntraced = 1, kTraced = 3;

}  // namespace

StepTrace::StepTrace(std::filesystem::path file, c10::Device device)
    : file_(std::move(file)), device_(device) {
  write_file(file_, "");
}

StepTrace::~StepTrace() {
  write();
}

void StepTrace::before_step() {
  if (steps_ != kUntraced) return;
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO,
                                        /*report_input_shapes=*/true);
  std::set<profiler::ActivityType> activities = {profiler::ActivityType::CPU};
  if (device_.is_cuda()) activities.insert(profiler::ActivityType::CUDA);
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
  is_tracing_ = true;
}

void StepTrace::after_step() {
  if (++steps_ == kUntraced + kTraced) write();
}

void StepTrace::write() {
  if (!std::exchange(is_tracing_, false)) return;
  torch::autograd::profiler::disableProfiler()->save(file_.string());
}

}  // namespace attnres
