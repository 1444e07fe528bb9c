#include "attnres/infer/inference_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "attnres/infer/step_depth_weights.h"
#include "attnres/parallel/mpi_communicator.h"
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

// Of some numbers that every rank has whole, and that training moves.
std::string hash_of_shared_numbers(const Transformer& model) {
  uint64_t hash = hash_bytes("");
  for (const Parameter& p : model.parameters().all()) {
    if (p.kind == ParameterKind::embedding) {
      hash = hash_of((p.packed.defined() ? p.packed.bytes : p.tensor).narrow(0, 0, 1), hash);
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
      {"weights", weight_format_names()[static_cast<size_t>(precision.weights)]},
      {"numbers", hash_of_shared_numbers(model)},
      {"build", describe_build()},
  };
}

std::unique_ptr<Transformer> load_together(const LoadPart& load, const TensorGroup& group,
                                           Communicator& ranks) {
  std::unique_ptr<Transformer> model;
  do_together(ranks, [&] { model = load(group); });
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

}  // namespace

void GroupLeader::tell(const GroupOrder& order, const std::function<void()>& compute) {
  try {
    or_end_all(ranks_, [&] {
      send_order(order, ranks_);
      compute();
    });
  } catch (const CommonFailure&) {
    has_ended_ = true;
    throw;
  }
}

std::unique_ptr<Transformer> GroupLeader::load(const LoadPart& load) {
  std::unique_ptr<Transformer> model;
  tell({.kind = GroupOrder::Kind::load}, [&] { model = load_together(load, group_, ranks_); });
  return model;
}

TokenRoom GroupLeader::count_tokens(const Transformer& model, const SequencePoolSize& size) {
  TokenRoom room;
  tell({.kind = GroupOrder::Kind::count_tokens, .size = size},
       [&] { room = least_room(model, size, ranks_); });
  return room;
}

void GroupLeader::make_pools(const SequencePoolSize& size, const std::function<void()>& make_own) {
  tell({.kind = GroupOrder::Kind::make_pool, .size = size}, make_own);
}

void GroupLeader::decode(DecodeOrder order, const std::function<void()>& compute) {
  tell({.kind = GroupOrder::Kind::decode, .decoding = std::move(order)}, compute);
}

void GroupLeader::read_sequence(const std::vector<int32_t>& ids,
                                const std::function<void()>& compute) {
  GroupOrder order = {.kind = GroupOrder::Kind::read_sequence};
  order.ids = ids;
  tell(order, compute);
}

void GroupLeader::end() {
  if (has_ended_) return;
  has_ended_ = true;
  tell({.kind = GroupOrder::Kind::end}, [] {});
}

void GroupFollower::follow() {
  // Tensors of every number of tokens leave gaps, of which long runs make more and more.
  constexpr double kSecondsBetween = 30;
  double next = monotonic_seconds() + kSecondsBetween;
  while (obey(receive_order(ranks_))) {
    if (monotonic_seconds() < next) continue;
    give_back_freed_memory();
    next = monotonic_seconds() + kSecondsBetween;
  }
}

bool GroupFollower::obey(const GroupOrder& order) {
  const at::NoGradGuard not_recording;
  switch (order.kind) {
    case GroupOrder::Kind::load:
      model_ = load_together(load_, group_, ranks_);
      return true;
    case GroupOrder::Kind::count_tokens:
      least_room(*model_, order.size, ranks_);
      return true;
    case GroupOrder::Kind::make_pool:
      pool_.reset();
      pool_ = model_->make_pool(order.size);
      return true;
    case GroupOrder::Kind::decode:
      decode(order.decoding);
      return true;
    case GroupOrder::Kind::read_sequence: {
      const at::Tensor ids_BT = at::empty({1, std::ssize(order.ids)}, at::kLong);
      std::copy(order.ids.begin(), order.ids.end(), ids_BT.mutable_data_ptr<int64_t>());
      model_->hidden(ids_BT);
      return true;
    }
    case GroupOrder::Kind::end:
      return false;
  }
  return false;
}

void GroupFollower::decode(const DecodeOrder& order) {
  for (const PoolChange& change : order.changes) {
    const int64_t result = apply(change, *pool_);
    require(result == change.result,
            "tensor group: the sequences of rank {} are not those of rank 0: {} is {} there, and "
            "{} here",
            ranks_.rank(),
            change.kind == PoolChange::Kind::truncate ? "a length" : "a sequence's number",
            change.result, result);
  }
  StepDepthWeights weights(&group_, std::ssize(order.ids));
  attnres::decode(*model_, *pool_, order.ids, order.continuations,
                  order.depth_weights ? &weights : nullptr);
}

}  // namespace attnres
