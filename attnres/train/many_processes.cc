#include "attnres/train/many_processes.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "attnres/parallel/together.h"
#include "attnres/support/format.h"
#include "attnres/train/first_weights.h"
#include "attnres/train/run_folder.h"
#include "attnres/train/validation.h"

namespace attnres {

// What rank 0 says to the others.
struct ManyProcesses::Order {
  enum class Kind : int64_t {
    begin,
    check_folder,
    step,
    validation_loss,
    probe,
    sample,
    save_last,
    save_best,
    end
  };
  Kind kind = Kind::end;
  FirstWeights weights = FirstWeights::drawn;  // to begin with
  int64_t step = 0;
  double learning_rate = 0;
};

ManyProcesses::ManyProcesses(const TrainJob& job, SharedText text, const Tokenizer* tokenizer,
                             Communicator& world)
    : job_(job), text_(std::move(text)), tokenizer_(tokenizer), world_(world) {}

void ManyProcesses::tell(const Order& order) {
  int64_t words[] = {static_cast<int64_t>(order.kind), static_cast<int64_t>(order.weights),
                     order.step, std::bit_cast<int64_t>(order.learning_rate)};
  broadcast_numbers(world_, words, 0);
}

ManyProcesses::Order ManyProcesses::hear() {
  int64_t words[4] = {};
  broadcast_numbers(world_, words, 0, "what rank 0 says is next");
  return {static_cast<Order::Kind>(words[0]), static_cast<FirstWeights>(words[1]), words[2],
          std::bit_cast<double>(words[3])};
}

void ManyProcesses::begin(FirstWeights weights) {
  tell({.kind = Order::Kind::begin, .weights = weights});
  begin_here(weights);
}

void ManyProcesses::check_folder() {
  tell({.kind = Order::Kind::check_folder});
  check_folder_here();
}

StepResult ManyProcesses::run(int64_t step, double learning_rate) {
  tell({.kind = Order::Kind::step, .step = step, .learning_rate = learning_rate});
  return steps_->run(step, learning_rate);
}

double ManyProcesses::validation_loss() {
  tell({.kind = Order::Kind::validation_loss});
  return validation_->loss();
}

ProbeReading ManyProcesses::probe() {
  tell({.kind = Order::Kind::probe});
  return validation_->probe();
}

Json ManyProcesses::sample() {
  tell({.kind = Order::Kind::sample});
  return sample_line(*tokenizer_, sample_prompt(text_.validation.ids, job_.recipe.train),
                     validation_->sample());
}

void ManyProcesses::save_last() {
  tell({.kind = Order::Kind::save_last});
  save_last_here();
}

void ManyProcesses::save_best() {
  tell({.kind = Order::Kind::save_best});
  save_best_here();
}

std::string ManyProcesses::end() {
  tell({.kind = Order::Kind::end});
  const ParallelTraffic traffic = steps_->end();
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
    for (Order order = hear(); order.kind != Order::Kind::end; order = hear()) obey(order);
    steps_->end();
  } catch (const Diverged&) {
    // Rank 0 has seen the same, and says so.
  }
}

void ManyProcesses::obey(const Order& order) {
  switch (order.kind) {
    case Order::Kind::begin:
      begin_here(order.weights);
      break;
    case Order::Kind::check_folder:
      check_folder_here();
      break;
    case Order::Kind::step:
      steps_->run(order.step, order.learning_rate);
      break;
    case Order::Kind::validation_loss:
      validation_->loss();
      break;
    case Order::Kind::probe:
      validation_->probe();
      break;
    case Order::Kind::sample:
      validation_->sample();
      break;
    case Order::Kind::save_last:
      save_last_here();
      break;
    case Order::Kind::save_best:
      save_best_here();
      break;
    case Order::Kind::end:
      break;
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
  save_model_folder(RunPaths{job_.out}.best(), *part_->model, tokenizer_, job_.recipe.train.context,
                    world_);
}

}  // namespace attnres
