#include "attnres/train/parallel/parallel_steps.h"

#include <ATen/ops/zeros.h>

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "attnres/layers/experts.h"
#include "attnres/support/file.h"

namespace attnres {

ParallelSteps::ParallelSteps(const ParallelPlace& place, Training& part, TrainBatches batches)
    : place_(place),
      world_(place.world),
      model_(*part.model),
      optimizer_(part.optimizer),
      pipeline_(model_, place.plan, place.ranks.pipeline()),
      gradient_sums_({.model = model_,
                      .whole = place.shapes,
                      .sites = place.plan.sites_by_rank(),
                      .pipeline = place.ranks.pipeline(),
                      .replicas = place.ranks.replicas(),
                      .tensor = place.ranks.tensor(),
                      .owners = place.owners}),
      batches_(std::move(batches)) {}

StepResult ParallelSteps::run(int64_t step, double learning_rate) {
  const TrainConfig& train = place_.recipe.train;
  const int64_t parts = train.accumulate / place_.recipe.parallel.data;
  const int64_t replica = place_.replica();
  std::vector<Batch> micro_batches;
  for (int64_t part = replica * parts; part < (replica + 1) * parts; ++part) {
    micro_batches.push_back(batches_.batch(step, part, train.batch_size / train.accumulate));
  }
  StepSums sums;
  for (const Batch& batch : micro_batches) sums.tokens += batch.tokens();
  const LossNumbers numbers = pipeline_.forward_backward(
      micro_batches, {.recompute = train.recompute, .expert_loads = &sums.expert_loads},
      &gradient_sums_);
  sums.loss = numbers.loss;
  sums.targets = numbers.targets;
  {
    const Timeline::Event waiting(timeline_.get(), "wait", "for sums of gradients");
    gradient_sums_.add_up();
  }

  double squares[] = {optimizer_
                          .squared_gradient_norm([&](const Parameter& parameter) {
                            return gradient_sums_.counts(parameter);
                          })
                          .item<double>()};
  Communicator& all_parameters = place_.owners.empty() ? place_.ranks.replica() : world_;
  sum_numbers(all_parameters, squares, "the sum of squares of gradients");

  const StepSums all = sum_over_ranks(sums);
  sums.loss = all.loss;
  sums.targets = all.targets;
  sums.tokens = all.tokens;
  for (auto& [site, load] : sums.expert_loads) load = all.expert_loads.at(site);
  std::optional<Timeline::Event> moving(std::in_place, timeline_.get(), "update", "parameters");
  StepResult result;
  try {
    result = move_parameters(model_.parameters(), optimizer_, train, std::move(sums),
                             std::sqrt(squares[0]), learning_rate);
  } catch (Diverged& diverged) {  // on all ranks
    diverged.broken = find_broken_rows(step);
    throw;
  }
  result.expert_loads = all.expert_loads;
  moving.reset();
  if (!place_.owners.empty()) {
    const Timeline::Event sharing(timeline_.get(), "wait", "for updated parameters");
    gradient_sums_.share_parameters();
  }
  if (++traced_steps_ == kTracedSteps) write_trace();
  return result;
}

// Those of a replica compute its rows one after another.
BrokenRows ParallelSteps::find_broken_rows(int64_t step) {
  const TrainConfig& train = place_.recipe.train;
  const int64_t all = train.batch_size, rows = all / place_.recipe.parallel.data;
  std::vector<int64_t> is_broken(all);
  std::vector<double> losses(all), targets(all);
  for (int64_t row = place_.replica() * rows; row < (place_.replica() + 1) * rows; ++row) {
    const LossNumbers numbers =
        pipeline_.forward_backward({batches_.batch(step, row, 1)}, {.recompute = train.recompute});
    // Of what this rank has. A sum of parts of a gradient is finite where they are.
    const double norm = optimizer_.gradient_norm();
    optimizer_.clear_gradients();
    is_broken[row] = std::isfinite(numbers.loss) && std::isfinite(norm) ? 0 : 1;
    losses[row] = numbers.loss;
    targets[row] = static_cast<double>(numbers.targets);
  }
  sum_numbers(world_, is_broken);
  sum_numbers(world_, losses);
  sum_numbers(world_, targets);
  BrokenRows broken;
  double sum = 0, counted = 0;  // of all other rows
  for (int64_t row = 0; row < all; ++row) {
    if (is_broken[row] > 0) {
      broken.rows.push_back({.row = row});
    } else {
      sum += losses[row];
      counted += targets[row];
    }
  }
  if (counted > 0) broken.loss_of_others = sum / counted;
  return broken;
}

// Losses and targets are those of the replicas' last ranks, of a tensor group of each its tokens';
// all ranks of a replica have the same tokens; a site's experts are on one of them, or in all of a
// tensor group, which saw the same.
StepSums ParallelSteps::sum_over_ranks(StepSums sums) const {
  const RankPlace& own = place_.ranks.place();
  const bool is_first = own.pipeline == 0 && own.tensor == 0;
  double numbers[] = {sums.loss, static_cast<double>(sums.targets),
                      is_first ? static_cast<double>(sums.tokens) : 0};
  sum_numbers(world_, numbers);
  sums.loss = numbers[0];
  sums.targets = static_cast<int64_t>(numbers[1]);
  sums.tokens = static_cast<int64_t>(numbers[2]);

  const int64_t experts = place_.recipe.model.settings<ExpertsSettings>().count;
  if (experts == 0) return sums;
  const at::Tensor loads_LE = at::zeros({place_.shapes.sublayers(), experts}, at::kLong);
  std::vector<int64_t> have(place_.shapes.sublayers());
  for (const auto& [site, load_E] : sums.expert_loads) {
    if (place_.ranks.place().tensor > 0) continue;
    loads_LE[site].copy_(load_E);
    have[site] = 1;
  }
  world_.all_reduce_sum(loads_LE, Traffic::number);
  sum_numbers(world_, have);
  for (int site = 0; site < place_.shapes.sublayers(); ++site) {
    if (have[site] > 0) sums.expert_loads[site] = loads_LE[site].clone();
  }
  return sums;
}

ParallelTraffic ParallelSteps::end() {
  write_trace();
  ParallelTraffic traffic;
  auto& sent = traffic.bytes_sent;
  for (int kind = 0; kind < kTrafficKinds; ++kind) {
    sent[kind] = place_.ranks.pipeline().bytes_sent(static_cast<Traffic>(kind));
  }
  if (const Communicator* tensor = place_.ranks.tensor(); tensor != nullptr) {
    sent[static_cast<int>(Traffic::tensor_group)] = tensor->bytes_sent(Traffic::tensor_group);
  }
  sent[static_cast<int>(Traffic::parameter_gradient)] = gradient_sums_.bytes_sent();
  sent[static_cast<int>(Traffic::parameter)] =
      place_.ranks.replicas().bytes_sent(Traffic::parameter);
  traffic.peak_received_bytes.resize(world_.size());
  traffic.peak_received_bytes[world_.rank()] = pipeline_.peak_received_bytes();
  sum_numbers(world_, sent);
  sum_numbers(world_, traffic.peak_received_bytes);
  place_.ranks.require_nothing_left();
  return traffic;
}

void ParallelSteps::write_trace() {
  if (timeline_ == nullptr) return;
  const std::vector<std::string> rows = gather_texts(world_, timeline_->row(world_.rank()));
  if (world_.rank() == 0) {
    for (const auto& file : traces_) write_file(file, chrome_trace(rows, place_.plan));
  }
  pipeline_.show_in(nullptr);
  gradient_sums_.show_in(nullptr);
  timeline_ = nullptr;
}

void ParallelSteps::trace_into(std::vector<std::filesystem::path> files) {
  traces_ = std::move(files);
  world_.barrier();
  timeline_ = std::make_unique<Timeline>();
  pipeline_.show_in(timeline_.get());
  gradient_sums_.show_in(timeline_.get());
}

}  // namespace attnres
