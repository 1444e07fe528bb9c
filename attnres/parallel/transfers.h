// What crosses between the stages of a pipeline: cross-stage caching of Attention Residuals (arXiv
// 2603.15031, section 4.1, Eqs. 7 and 8), said of any mechanism by its `plan`, and without a model.
//
// Before a stage its rank must have the depth state: every open tensor, which is another one at
// every site and always crosses, and the sealed tensors that a site from here on reads. Of sealed
// tensors a rank may have a copy already. With C = P V stages that seal one block each there cross
// for each micro-batch and token
//
//   naive   all of them:                                            C (C - 1) / 2          Eq. 7
//   report  those that the rank's stage before did not begin with:
//                                                P (P - 1) / 2 + (V - 1) P^2               Eq. 8
//   owned   and that the rank did not seal itself:
//                                                P (P - 1) / 2 + (V - 1) P (P - 1)
//
// and the embedding besides, to every stage but the first (naive), or to every rank but the first.
// `owned` is the least that is possible: each rank receives each tensor once, and none of its own.
//
// Everything comes from the stage before, whose rank has it all. Gradients go back on the same
// ways: where a copy came from, there goes the sum of what all its readers add.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attnres/depth/depth_mixer.h"
#include "attnres/depth/state_plan.h"
#include "attnres/parallel/schedule.h"
#include "attnres/parameters/parameters.h"

namespace attnres {

enum class TransferPolicy { naive, report, owned };
// "naive", ..; the other way it throws UsageError where there is no such policy.
std::string name_of(TransferPolicy policy);
TransferPolicy transfer_policy(const std::string& name);

// The sites of `stages` stages that have as many sublayers each, or one more, the first ones more;
// the output site belongs to the last. Throws UsageError where there are fewer sublayers.
std::vector<SiteRange> even_stages(int sublayers, int stages);

inline constexpr int kNoCopy = -1;

// What a stage begins with.
struct StageTransfers {
  SiteRange sites = {};
  StatePlan before = {};  // the state before its first site
  // For each of before.sealed, the copy that it reads: the stage of this rank into which this copy
  // came, or which sealed it; the stage itself where it crosses into it; kNoCopy where no site from
  // here on reads it.
  std::vector<int> copies = {};
  std::vector<int> received = {};  // the numbers of those that cross into it, ascending
};

// The transfers of all stages, in order: site ranges may begin and end anywhere. Throws Error where
// they are not as many as `size` has stages, or leave out a site of 0 to L.
std::vector<StageTransfers> plan_transfers(const DepthMixer& mixer, int sublayers,
                                           const PipelineSize& size,
                                           const std::vector<SiteRange>& stages,
                                           TransferPolicy policy);

// What crosses for a token and micro-batch, in one direction.
struct TransferCount {
  int64_t tensors = 0, numbers = 0;

  TransferCount& operator+=(const TransferCount& other);
  bool operator==(const TransferCount&) const = default;
};
// What crosses into a stage.
TransferCount sealed_into(const StageTransfers& stage);
TransferCount open_into(const StageTransfers& stage);

}  // namespace attnres
