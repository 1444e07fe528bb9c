#include "attnres/train/parallel_steps.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "attnres/parallel/update_owners.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/train/learning_rates.h"

namespace attnres {
namespace {

constexpr std::array<const char*, 3> kMoments = {"first_moment", "second_moment", "momentum"};

PipelinePlan plan_of(const Transformer& shapes, const ParallelConfig& parallel) {
  return plan_pipeline(
      shapes.mixer(), shapes.sublayers(),
      {static_cast<int>(parallel.pipeline), static_cast<int>(parallel.virtual_stages)},
      transfer_policy(parallel.policy));
}

// Of those parameters of the whole model that a rank holds, in its order; 0 of those that another
// replica updates.
std::vector<double> factors_of(const Transformer& held, const Transformer& shapes,
                               const TrainConfig& train, const std::vector<int>& owners,
                               int replica) {
  const std::vector<double> all =
      rate_factors(shapes.parameters(), shapes.sublayers(), train.rates);
  std::map<std::pair<int, std::string>, double> by_name;
  for (size_t i = 0; i < all.size(); ++i) {
    const Parameter& p = shapes.parameters().all()[i];
    by_name[{p.site, p.role}] = owners.empty() || owners[i] == replica ? all[i] : 0;
  }
  std::vector<double> factors;
  for (const Parameter& p : held.parameters().all())
    factors.push_back(by_name.at({p.site, p.role}));
  return factors;
}

// A parameter's numbers and moments, by name.
std::map<std::string, at::Tensor> tensors_of(const Transformer& model, const Optimizer& optimizer) {
  std::map<std::string, at::Tensor> tensors;
  for (const Parameter& p : model.parameters().all()) {
    tensors[fmt::format("{}.{}", p.site, p.role)] = p.tensor.detach();
  }
  for (const auto& [name, moment] : optimizer.state()) tensors[name] = moment;
  return tensors;
}

}  // namespace

// What rank 0 says to the others.
struct ParallelSteps::Order {
  enum class Kind : int64_t { scatter, step, gather, end };
  Kind kind = Kind::end;
  int64_t step = 0;  // or the number of updates
  double learning_rate = 0;
};

ParallelSteps::ParallelSteps(const Recipe& recipe, int64_t vocab_size, TrainBatches batches,
                             Communicator& world)
    : recipe_(recipe),
      world_(world),
      ranks_(recipe.parallel, world),
      shapes_(recipe.model, vocab_size, /*seed=*/std::nullopt, precision_of(recipe.train),
              at::kMeta),
      plan_(plan_of(shapes_, recipe.parallel)),
      owners_(
          recipe.parallel.shard_optimizer
              ? update_owners(shapes_.parameters(), plan_.sites_by_rank(), ranks_.replicas().size())
              : std::vector<int>()),
      model_(recipe.model, vocab_size, /*seed=*/std::nullopt, precision_of(recipe.train), at::kCPU,
             plan_.sites_of(ranks_.place().pipeline), ranks_.group()),
      optimizer_(model_.parameters(), recipe.train,
                 factors_of(model_, shapes_, recipe.train, owners_, ranks_.place().replica)),
      pipeline_(model_, plan_, ranks_.pipeline()),
      gradient_sums_(model_, plan_.sites_by_rank(), ranks_.pipeline(), ranks_.replicas(),
                     ranks_.tensor(), owners_),
      batches_(std::move(batches)) {}

void ParallelSteps::tell(const Order& order) {
  const at::Tensor words = at::empty({3}, at::kLong);
  int64_t* word = words.mutable_data_ptr<int64_t>();
  word[0] = static_cast<int64_t>(order.kind);
  word[1] = order.step;
  word[2] = std::bit_cast<int64_t>(order.learning_rate);
  world_.broadcast(words, 0, Traffic::number);
}

ParallelSteps::Order ParallelSteps::hear() {
  const at::Tensor words = at::empty({3}, at::kLong);
  world_.broadcast(words, 0, Traffic::number, "what rank 0 says is next");
  const int64_t* word = words.const_data_ptr<int64_t>();
  return {static_cast<Order::Kind>(word[0]), word[1], std::bit_cast<double>(word[2])};
}

void ParallelSteps::scatter(Training& whole) {
  tell({.kind = Order::Kind::scatter, .step = whole.optimizer.updates});
  optimizer_.updates = whole.optimizer.updates;
  exchange(&whole, /*home=*/false);
}

StepResult ParallelSteps::run(int64_t step, double learning_rate) {
  tell({.kind = Order::Kind::step, .step = step, .learning_rate = learning_rate});
  return do_step(step, learning_rate);
}

void ParallelSteps::gather(Training& whole) {
  tell({.kind = Order::Kind::gather});
  exchange(&whole, /*home=*/true);
  whole.optimizer.updates = optimizer_.updates;
}

ParallelTraffic ParallelSteps::end() {
  tell({.kind = Order::Kind::end});
  return leave();
}

void ParallelSteps::trace_into(std::vector<std::filesystem::path> files) {
  traces_ = std::move(files);
  world_.barrier();
  timeline_ = std::make_unique<Timeline>();
  pipeline_.show_in(timeline_.get());
  gradient_sums_.show_in(timeline_.get());
}

ParallelTraffic ParallelSteps::leave() {
  write_trace();
  const at::Tensor sums = at::zeros({kTrafficKinds}, at::kLong),
                   peaks = at::zeros({world_.size()}, at::kLong);
  int64_t* sum = sums.mutable_data_ptr<int64_t>();
  for (int kind = 0; kind < kTrafficKinds; ++kind) {
    sum[kind] = ranks_.pipeline().bytes_sent(static_cast<Traffic>(kind));
  }
  if (ranks_.tensor() != nullptr) {
    sum[static_cast<int>(Traffic::tensor_group)] =
        ranks_.tensor()->bytes_sent(Traffic::tensor_group);
  }
  sum[static_cast<int>(Traffic::parameter_gradient)] = gradient_sums_.bytes_sent();
  sum[static_cast<int>(Traffic::parameter)] = ranks_.replicas().bytes_sent(Traffic::parameter);
  int64_t* peak = peaks.mutable_data_ptr<int64_t>();
  peak[world_.rank()] = pipeline_.peak_received_bytes();
  world_.all_reduce_sum(sums, Traffic::number);
  world_.all_reduce_sum(peaks, Traffic::number);
  ranks_.require_nothing_left();
  ParallelTraffic traffic;
  std::copy(sum, sum + kTrafficKinds, traffic.bytes_sent.begin());
  traffic.peak_received_bytes.assign(peak, peak + world_.size());
  return traffic;
}

void ParallelSteps::write_trace() {
  if (timeline_ == nullptr) return;
  const std::vector<std::string> rows = gather_texts(world_, timeline_->row(world_.rank()));
  if (world_.rank() == 0) {
    for (const auto& file : traces_) write_file(file, chrome_trace(rows, plan_));
  }
  pipeline_.show_in(nullptr);
  gradient_sums_.show_in(nullptr);
  timeline_ = nullptr;
}

void ParallelSteps::follow() {
  for (;;) {
    const Order order = hear();
    switch (order.kind) {
      case Order::Kind::scatter:
        optimizer_.updates = order.step;
        exchange(nullptr, /*home=*/false);
        break;
      case Order::Kind::step:
        try {
          do_step(order.step, order.learning_rate);
        } catch (const Diverged&) {
          return;  // rank 0 has seen the same, and says so
        }
        break;
      case Order::Kind::gather:
        exchange(nullptr, /*home=*/true);
        break;
      case Order::Kind::end:
        leave();
        return;
    }
  }
}

StepResult ParallelSteps::do_step(int64_t step, double learning_rate) {
  const TrainConfig& train = recipe_.train;
  const int64_t parts = train.accumulate / recipe_.parallel.data;
  const int64_t replica = ranks_.place().replica;
  std::vector<Batch> micro_batches;
  for (int64_t part = replica * parts; part < (replica + 1) * parts; ++part) {
    micro_batches.push_back(batches_.batch(step, part, train.batch_size / train.accumulate));
  }
  StepSums sums;
  const LossNumbers numbers = pipeline_.forward_backward(
      micro_batches, {.recompute = train.recompute, .expert_loads = &sums.expert_loads},
      &gradient_sums_);
  sums.loss = numbers.loss;
  sums.targets = numbers.targets;
  {
    const Timeline::Event waiting(timeline_.get(), "wait", "for sums of gradients");
    gradient_sums_.add_up();
  }

  const at::Tensor squares = at::zeros({1}, at::kDouble);
  *squares.mutable_data_ptr<double>() = optimizer_.squared_gradient_norm(
      [&](const Parameter& parameter) { return gradient_sums_.counts(parameter); });
  Communicator& all_parameters = owners_.empty() ? ranks_.replica() : world_;
  all_parameters.all_reduce_sum(squares, Traffic::number, "the sum of squares of gradients");

  const StepSums all = sum_over_ranks(sums);
  sums.loss = all.loss;
  sums.targets = all.targets;
  for (auto& [site, load] : sums.expert_loads) load = all.expert_loads.at(site);
  std::optional<Timeline::Event> moving(std::in_place, timeline_.get(), "update", "parameters");
  StepResult result = move_parameters(model_.parameters(), optimizer_, train, std::move(sums),
                                      std::sqrt(squares.item<double>()), learning_rate);
  result.expert_loads = all.expert_loads;
  moving.reset();
  if (!owners_.empty()) {
    const Timeline::Event sharing(timeline_.get(), "wait", "for updated parameters");
    gradient_sums_.share_parameters();
  }
  if (++traced_steps_ == kTracedSteps) write_trace();
  return result;
}

// Losses and targets are those of the replicas' last ranks, of a tensor group of each its tokens';
// a site's experts are on one rank of each replica, or in all of a tensor group, which saw the
// same.
StepSums ParallelSteps::sum_over_ranks(StepSums sums) const {
  const at::Tensor numbers = at::zeros({2}, at::kDouble);
  double* number = numbers.mutable_data_ptr<double>();
  number[0] = sums.loss;
  number[1] = static_cast<double>(sums.targets);
  world_.all_reduce_sum(numbers, Traffic::number);
  sums.loss = number[0];
  sums.targets = static_cast<int64_t>(number[1]);

  const int64_t experts = recipe_.model.experts.count;
  if (experts == 0) return sums;
  const at::Tensor loads_LE = at::zeros({shapes_.sublayers(), experts}, at::kLong);
  const at::Tensor have_L = at::zeros({shapes_.sublayers()}, at::kLong);
  for (const auto& [site, load_E] : sums.expert_loads) {
    if (ranks_.place().tensor > 0) continue;
    loads_LE[site].copy_(load_E);
    have_L[site].fill_(1);
  }
  world_.all_reduce_sum(loads_LE, Traffic::number);
  world_.all_reduce_sum(have_L, Traffic::number);
  for (int site = 0; site < shapes_.sublayers(); ++site) {
    if (have_L[site].item<int64_t>() > 0) sums.expert_loads[site] = loads_LE[site].clone();
  }
  return sums;
}

std::vector<int> ParallelSteps::holders(const Parameter& parameter) const {
  const std::vector<size_t> of_replica = stages_with(parameter, plan_.sites_by_rank());
  std::vector<int> ranks;
  RankPlace place;
  for (place.replica = 0; place.replica < recipe_.parallel.data; ++place.replica) {
    for (const size_t rank : of_replica) {
      place.pipeline = static_cast<int>(rank);
      for (place.tensor = 0; place.tensor < recipe_.parallel.tensor; ++place.tensor) {
        ranks.push_back(rank_at(place, recipe_.parallel));
      }
    }
  }
  return ranks;
}

std::vector<int> ParallelSteps::moment_holders(size_t parameter) const {
  const std::vector<int> all = holders(shapes_.parameters().all()[parameter]);
  if (owners_.empty()) return all;
  std::vector<int> of_owner;
  for (const int rank : all) {
    if (place_of_rank(rank, recipe_.parallel).replica == owners_[parameter])
      of_owner.push_back(rank);
  }
  return of_owner;
}

// Tensor by tensor, in the order of the whole model's parameters: from rank 0 to all who hold it,
// or home from the first of them, or the first that hold its parts. By way of copies, since a
// tensor that is written behind its back does not count its versions.
void ParallelSteps::exchange(Training* whole, bool home) {
  const bool leads = whole != nullptr;
  const auto here = tensors_of(model_, optimizer_);
  std::map<std::string, at::Tensor> of_whole;
  if (leads) of_whole = tensors_of(*whole->model, whole->optimizer);
  const auto pass = [&](const at::Tensor& from, const at::Tensor& to, int sender, int receiver) {
    if (sender == receiver) {
      if (world_.rank() == sender) to.copy_(from);
    } else if (world_.rank() == sender) {
      world_.send(from.contiguous(), receiver, Channel::other, Traffic::parameter)->wait();
    } else if (world_.rank() == receiver) {
      const at::Tensor copy = at::empty(to.sizes(), to.options());
      world_.receive(copy, sender, Channel::other)->wait();
      to.copy_(copy);
    }
  };
  const auto find = [](const std::map<std::string, at::Tensor>& tensors, const std::string& name) {
    const auto found = tensors.find(name);
    return found == tensors.end() ? at::Tensor() : found->second;
  };
  for (size_t n = 0; n < shapes_.parameters().all().size(); ++n) {
    const Parameter& p = shapes_.parameters().all()[n];
    std::vector<std::string> names = {fmt::format("{}.{}", p.site, p.role)};
    for (const char* moment : kMoments) names.push_back(fmt::format("{}.{}", names[0], moment));
    for (const std::string& name : names) {
      const std::vector<int> ranks = &name == &names[0] ? holders(p) : moment_holders(n);
      const at::Tensor at_home = find(of_whole, name), held = find(here, name);
      if (!at_home.defined() && !held.defined()) continue;
      const auto part_of_home = [&](int rank) {
        const TensorPart part = {place_of_rank(rank, recipe_.parallel).tensor,
                                 static_cast<int>(recipe_.parallel.tensor)};
        return at_home.defined() ? part_of_parameter(part, p, at_home) : at::Tensor();
      };
      const size_t senders = cut_dimension(p) < 0 ? 1 : recipe_.parallel.tensor;
      for (size_t i = 0; i < (home ? senders : ranks.size()); ++i) {
        if (home) {
          pass(held, part_of_home(ranks[i]), ranks[i], 0);
        } else {
          pass(part_of_home(ranks[i]), held, 0, ranks[i]);
        }
      }
    }
  }
}

}  // namespace attnres
