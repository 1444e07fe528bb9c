#include "attnres/parallel/transfers.h"

#include <algorithm>
#include <utility>

#include "attnres/support/error.h"

namespace attnres {
namespace {

const std::vector<std::pair<TransferPolicy, std::string>>& policies() {
  static const std::vector<std::pair<TransferPolicy, std::string>> all = {
      {TransferPolicy::naive, "naive"},
      {TransferPolicy::report, "report"},
      {TransferPolicy::owned, "owned"}};
  return all;
}

void check_stages(const std::vector<SiteRange>& stages, int sublayers, const PipelineSize& size) {
  require(stages.size() == static_cast<size_t>(size.stages()),
          "pipeline: {} ranks with {} virtual stages each have {} stages, but there are sites of "
          "{}",
          size.ranks, size.virtual_stages, size.stages(), stages.size());
  int next = 0;
  for (const SiteRange& sites : stages) {
    require(sites.first == next && sites.last > next,
            "pipeline: expected a stage of site {} and following, got one of {} up to {}", next,
            sites.first, sites.last);
    next = sites.last;
  }
  require(next == sublayers + 1, "pipeline: the stages end before site {}, not after the output {}",
          next, sublayers);
}

// The copy that a rank has of a sealed tensor from its stage before this one.
int copy_at_rank(const StageTransfers& earlier, int earlier_stage, size_t sealed_after_earlier,
                 size_t tensor, TransferPolicy policy) {
  if (policy == TransferPolicy::naive) return kNoCopy;
  if (tensor < earlier.copies.size()) return earlier.copies[tensor];
  const bool made_there = tensor < sealed_after_earlier;
  return policy == TransferPolicy::owned && made_there ? earlier_stage : kNoCopy;
}

}  // namespace

std::string name_of(TransferPolicy policy) {
  for (const auto& [value, name] : policies()) {
    if (value == policy) return name;
  }
  fail("pipeline: a transfer policy without a name");
}

TransferPolicy transfer_policy(const std::string& name) {
  for (const auto& [value, known] : policies()) {
    if (known == name) return value;
  }
  fail_usage("parallel.policy: expected naive, report or owned, got {}", name);
}

std::vector<SiteRange> even_stages(int sublayers, int stages) {
  require_usage(stages > 0 && stages <= sublayers,
                "pipeline: {} sublayers cannot be shared by {} stages; every stage needs one",
                sublayers, stages);
  std::vector<SiteRange> ranges;
  int first = 0;
  for (int stage = 0; stage < stages; ++stage) {
    const int last = first + sublayers / stages + (stage < sublayers % stages ? 1 : 0);
    ranges.push_back({first, last});
    first = last;
  }
  ++ranges.back().last;
  return ranges;
}

std::vector<StageTransfers> plan_transfers(const DepthMixer& mixer, int sublayers,
                                           const PipelineSize& size,
                                           const std::vector<SiteRange>& stages,
                                           TransferPolicy policy) {
  check_stages(stages, sublayers, size);
  std::vector<StageTransfers> all;
  for (int stage = 0; stage < size.stages(); ++stage) {
    StageTransfers transfers = {.sites = stages[stage], .before = mixer.plan(stages[stage].first)};
    const int earlier = stage - size.ranks;
    // Of one rank the next stage is this one.
    const StatePlan& after_earlier =
        earlier >= 0 && size.ranks > 1 ? all[earlier + 1].before : transfers.before;
    for (size_t i = 0; i < transfers.before.sealed.size(); ++i) {
      int copy = kNoCopy;
      if (transfers.before.sealed[i].last_reader >= stages[stage].first) {
        if (earlier >= 0) {
          copy = copy_at_rank(all[earlier], earlier, after_earlier.sealed.size(), i, policy);
        }
        if (copy == kNoCopy) copy = stage;
        if (copy == stage && stage > 0) transfers.received.push_back(static_cast<int>(i));
      }
      transfers.copies.push_back(copy);
    }
    all.push_back(std::move(transfers));
  }
  return all;
}

TransferCount& TransferCount::operator+=(const TransferCount& other) {
  tensors += other.tensors;
  numbers += other.numbers;
  return *this;
}

TransferCount sealed_into(const StageTransfers& stage) {
  TransferCount count;
  for (const int i : stage.received) count += {1, stage.before.sealed[i].numbers()};
  return count;
}

TransferCount open_into(const StageTransfers& stage) {
  TransferCount count;
  if (stage.sites.first == 0) return count;
  for (const PlannedTensor& tensor : stage.before.open) count += {1, tensor.numbers()};
  return count;
}

}  // namespace attnres
