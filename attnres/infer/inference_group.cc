#include "attnres/infer/inference_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "attnres/infer/step_depth_weights.h"
#include "attnres/parallel/mpi_communicator.h"
#include "attnres/parallel/orders.h"
#include "attnres/parallel/together.h"
#include "attnres/support/build_info.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "attnres/support/hex.h"
#include "attnres/support/json.h"
#include "attnres/support/machine.h"
#include "attnres/support/memory.h"
#include "attnres/support/progress.h"
#include "attnres/support/random.h"

namespace attnres {
namespace {

uint64_t hash_of(const at::Tensor& tensor, uint64_t start) {
  const at::Tensor numbers = tensor.detach().contiguous();
  return hash_bytes({static_cast<const char*>(numbers.const_data_ptr()), numbers.nbytes()}, start);
}

// The hash of some numbers that every rank has whole, and that training moves.
std::string hash_of_shared_numbers(const Transformer& model) {
  uint64_t hash = hash_bytes("");
  for (const Parameter& p : model.parameters().all()) {
    if (p.kind == ParameterKind::embedding) {
      hash = hash_of(p.held().narrow(0, 0, 1), hash);
    } else if (p.tensor.dim() == 1 && cut_dimension(p) < 0) {
      hash = hash_of(p.tensor, hash);
    }
  }
  return hex(hash);
}

Json describe(const Transformer& model) {
  const Precision precision = model.parameters().precision();
  return {
      {"model", write_config(model.config())},
      {"vocabulary", model.vocab_size()},
      {"precision", c10::toString(precision.activations)},
      {"weights", precision.weights.name()},
      {"numbers", hash_of_shared_numbers(model)},
      {"build", describe_build()},
  };
}

std::unique_ptr<Transformer> load_together(const LoadTransformer& load, const TensorGroup& group,
                                           Communicator& ranks) {
  std::unique_ptr<Transformer> model;
  do_together(ranks, [&] { model = load(&group); });
  require_alike(ranks, describe(*model),
                "the processes of a tensor group must have the same model and build, but these "
                "differ from rank 0's:",
                "give all of them the same files and program");
  return model;
}

// All ranks call it.
TokenRoom least_room(const Transformer& model, const SequencePoolSize& size, Communicator& ranks) {
  give_back_freed_memory();  // of loading
  const int64_t free = available_memory() / launched_on_this_machine();
  std::vector<int64_t> tokens(ranks.size()), bytes(ranks.size());
  tokens[ranks.rank()] = tokens_that_fit(model, size, free);
  bytes[ranks.rank()] = free;
  sum_numbers(ranks, tokens);
  sum_numbers(ranks, bytes);
  const auto least = std::min_element(tokens.begin(), tokens.end());
  return {*least, bytes[least - tokens.begin()]};
}

ReadOrder order_to_read(const at::Tensor& ids_BT) {
  const at::Tensor ids = ids_BT.contiguous();
  const auto* first = ids.const_data_ptr<int64_t>();
  return {.sequences = ids.size(0), .ids = {first, first + ids.numel()}};
}

}  // namespace

// Has `order` done by all, by this rank as `compute`, and gives what that gives.
template <class Compute>
auto GroupLeader::tell(GroupOrder order, const Compute& compute) {
  untold_.push_back(std::move(order));
  decltype(compute()) result = {};
  try {
    or_end_all(ranks_, [&] {
      send_order(std::exchange(untold_, {}), ranks_);
      result = compute();
    });
  } catch (const CommonFailure&) {
    has_ended_ = true;
    throw;
  }
  return result;
}

// Rank 0's part, whose passes all make.
class GroupLeader::Model : public InferenceModel {
 public:
  Model(GroupLeader& leader, std::unique_ptr<const Transformer> part)
      : leader_(leader), part_(std::move(part)) {}

  const Transformer& transformer() const override { return part_.transformer(); }

  TokenRoom count_tokens(const SequencePoolSize& size) const override {
    return leader_.tell(CountTokensOrder{size},
                        [&] { return least_room(transformer(), size, leader_.ranks_); });
  }

  std::unique_ptr<SequencePool> make_pool(const SequencePoolSize& size) const override {
    return leader_.tell(MakePoolOrder{size}, [&] { return part_.make_pool(size); });
  }

  int64_t change(SequencePool& pool, const PoolChange& change) const override {
    const int64_t result = part_.change(pool, change);
    leader_.untold_.push_back(ChangePoolOrder{change, result});
    return result;
  }

  at::Tensor decode(SequencePool& pool, const std::vector<int32_t>& ids,
                    const std::vector<Continuation>& continuations,
                    StepDepthWeights* weights) const override {
    return leader_.tell(DecodeOrder{ids, continuations, weights != nullptr},
                        [&] { return part_.decode(pool, ids, continuations, weights); });
  }

  at::Tensor log_probabilities(const at::Tensor& ids_BT,
                               const at::Tensor& targets_BT) const override {
    return leader_.tell(order_to_read(ids_BT),
                        [&] { return part_.log_probabilities(ids_BT, targets_BT); });
  }

  std::vector<DepthSite> depth_sites() const override {
    return leader_.tell(ReadOrder{.ids = {0}}, [&] { return part_.depth_sites(); });
  }

 private:
  GroupLeader& leader_;
  LocalModel part_;
};

std::unique_ptr<InferenceModel> GroupLeader::load(const LoadTransformer& load) {
  return std::make_unique<Model>(
      *this, tell(LoadOrder{}, [&] { return load_together(load, group_, ranks_); }));
}

void GroupLeader::end() {
  if (has_ended_) return;
  has_ended_ = true;
  tell(EndOrder{}, [] { return true; });
}

void GroupFollower::follow() {
  // Tensors of every number of tokens leave gaps, of which long runs make more and more.
  constexpr double kSecondsBetween = 30;
  double next = monotonic_seconds() + kSecondsBetween;
  while (obey(hear())) {
    if (monotonic_seconds() < next) continue;
    give_back_freed_memory();
    next = monotonic_seconds() + kSecondsBetween;
  }
}

GroupOrders GroupFollower::hear() {
  return receive_order<GroupOrders>(ranks_, Patience::however_long);
}

bool GroupFollower::obey(const GroupOrders& orders) {
  const at::NoGradGuard not_recording;
  for (const GroupOrder& order : orders) {
    std::visit([&](const auto& known) { run(known); }, order);
    if (std::holds_alternative<EndOrder>(order)) return false;
  }
  return true;
}

void GroupFollower::run(const LoadOrder&) {
  part_ = std::make_unique<LocalModel>(load_together(load_, group_, ranks_));
}

void GroupFollower::run(const CountTokensOrder& order) {
  least_room(part_->transformer(), order.size, ranks_);
}

void GroupFollower::run(const MakePoolOrder& order) {
  pool_.reset();
  pool_ = part_->make_pool(order.size);
}

void GroupFollower::run(const ChangePoolOrder& order) {
  const int64_t result = part_->change(*pool_, order.change);
  require(result == order.result,
          "tensor group: the sequences of rank {} are not those of rank 0: {} is {} there, and {} "
          "here",
          ranks_.rank(),
          order.change.kind == PoolChange::Kind::truncate ? "a length" : "a sequence's number",
          order.result, result);
}

void GroupFollower::run(const DecodeOrder& order) {
  StepDepthWeights weights(&group_, std::ssize(order.ids));
  part_->decode(*pool_, order.ids, order.continuations, order.depth_weights ? &weights : nullptr);
}

void GroupFollower::run(const ReadOrder& order) {
  const int64_t length = std::ssize(order.ids) / order.sequences;
  part_->transformer().hidden(at::tensor(order.ids).view({order.sequences, length}));
}

}  // namespace attnres
