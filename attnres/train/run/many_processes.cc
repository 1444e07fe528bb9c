#include "attnres/train/run/many_processes.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "attnres/parallel/orders.h"
#include "attnres/parallel/together.h"
#include "attnres/support/format.h"
#include "attnres/train/run/first_weights.h"
#include "attnres/train/run_folder/run_folder.h"
#include "attnres/train/step/validation.h"

namespace attnres {

// What rank 0 says, and each rank then does.
struct ManyProcesses::Orders {
  struct Begin {
    FirstWeights weights = FirstWeights::drawn;
    void run(ManyProcesses& here) const { here.begin_here(weights); }
  };
  struct CheckFolder {
    void run(ManyProcesses& here) const { here.check_folder_here(); }
  };
  struct Step {
    int64_t step = 0;
    double learning_rate = 0;
    StepResult run(ManyProcesses& here) const { return here.steps_->run(step, learning_rate); }
  };
  struct ValidationLoss {
    double run(ManyProcesses& here) const { return here.validation_->loss(); }
  };
  struct Probe {
    ProbeReading run(ManyProcesses& here) const { return here.validation_->probe(); }
  };
  struct Sample {
    std::vector<int32_t> run(ManyProcesses& here) const { return here.validation_->sample(); }
  };
  struct SaveLast {
    void run(ManyProcesses& here) const { here.save_last_here(); }
  };
  struct SaveBest {
    void run(ManyProcesses& here) const { here.save_best_here(); }
  };
  struct End {
    ParallelTraffic run(ManyProcesses& here) const { return here.steps_->end(); }
  };
  using Any = std::variant<Begin, CheckFolder, Step, ValidationLoss, Probe, Sample, SaveLast,
                           SaveBest, End>;
};

template <class Order>
auto ManyProcesses::tell(const Order& order) {
  send_order(Orders::Any(order), world_);
  return order.run(*this);
}

ManyProcesses::ManyProcesses(const TrainJob& job, SharedText text, const Tokenizer* tokenizer,
                             Communicator& world)
    : job_(job), text_(std::move(text)), tokenizer_(tokenizer), world_(world) {}

void ManyProcesses::begin(FirstWeights weights) {
  tell(Orders::Begin{weights});
}

void ManyProcesses::check_folder() {
  tell(Orders::CheckFolder{});
}

StepResult ManyProcesses::run(int64_t step, double learning_rate) {
  return tell(Orders::Step{step, learning_rate});
}

double ManyProcesses::validation_loss() {
  return tell(Orders::ValidationLoss{});
}

ProbeReading ManyProcesses::probe() {
  return tell(Orders::Probe{});
}

Json ManyProcesses::sample() {
  const std::vector<int32_t> continuation = tell(Orders::Sample{});
  return sample_line(*tokenizer_, sample_prompt(text_.validation.ids, job_.recipe.train),
                     continuation);
}

void ManyProcesses::save_last() {
  tell(Orders::SaveLast{});
}

void ManyProcesses::save_best() {
  tell(Orders::SaveBest{});
}

std::string ManyProcesses::end() {
  const ParallelTraffic traffic = tell(Orders::End{});
  const auto sent = [&](Traffic kind) {
    return format_bytes(static_cast<double>(traffic.bytes_sent[static_cast<int>(kind)]));
  };
  const auto& peaks = traffic.peak_received_bytes;
  return fmt::format(
      "sent: {} of sealed tensors and {} of open ones, {} and {} of their gradients; {} within "
      "tensor groups; {} of parameters' gradients. Received copies took {} at most on a rank",
      sent(Traffic::sealed), sent(Traffic::open), sent(Traffic::sealed_gradient),
      sent(Traffic::open_gradient), sent(Traffic::tensor_group), sent(Traffic::parameter_gradient),
      format_bytes(static_cast<double>(*std::max_element(peaks.begin(), peaks.end()))));
}

void ManyProcesses::follow() {
  try {
    for (bool ended = false; !ended;) {
      const auto next = receive_order<Orders::Any>(world_, Patience::time_limit);
      std::visit([&](const auto& order) { order.run(*this); }, next);
      ended = std::holds_alternative<Orders::End>(next);
    }
  } catch (const Diverged&) {
    // Rank 0 has seen the same, and says so.
  }
}

void ManyProcesses::begin_here(FirstWeights weights) {
  int64_t embeddings = 0;
  do_together(world_, [&] { embeddings = embeddings_of(job_, text_.vocabulary.size, weights); });
  place_.emplace(job_.recipe, embeddings, world_);
  do_together(world_, [&] {
    part_.emplace(make_training(job_, text_.vocabulary.size, weights, place_->part()));
  });
  steps_.emplace(*place_, *part_, batches_of(text_.sources, job_.recipe, text_.vocabulary));
  validation_.emplace(*place_, *part_->model, text_.validation, text_.vocabulary);
  std::vector<std::filesystem::path> traces = {RunPaths{job_.out}.trace()};
  if (!job_.trace.empty()) traces.push_back(job_.trace);
  steps_->trace_into(std::move(traces));
}

void ManyProcesses::check_folder_here() {
  do_together(world_, [&] {
    const RunPaths paths{job_.out};
    require(path_exists(paths.run_json()),
            "{}: rank 0 has written this, but rank {} does not see it: all processes write their "
            "parts of checkpoints, so --out must be a folder that all of them see",
            paths.run_json().string(), world_.rank());
  });
}

void ManyProcesses::save_last_here() {
  int64_t not_finite[] = {are_weights_finite(*part_->model) ? 0 : 1};
  sum_numbers(world_, not_finite);
  require_finite_weights(not_finite[0] == 0);
  save_checkpoint(RunPaths{job_.out}.last(), *part_, tokenizer_, job_.recipe.train.context, world_);
}

void ManyProcesses::save_best_here() {
  save_model_folder(RunPaths{job_.out}.best(), *part_, tokenizer_, job_.recipe.train.context,
                    world_);
}

}  // namespace attnres
