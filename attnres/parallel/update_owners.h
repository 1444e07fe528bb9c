// Which replica updates each parameter, where the optimizer's state is sharded over the replicas:
// ZeRO, stage 1 (Rajbhandari et al., arXiv 1910.02054, section 5.1), by whole parameters, since
// Muon needs whole matrices.
#pragma once

#include <vector>

#include "attnres/parameters/parameters.h"

namespace attnres {

// Who owns parameters that several ranks of a pipeline hold: these find a gradient within one.
inline constexpr int kOwnerOfShared = 0;

// By parameter of the whole model, in their order; `sites` are those of each rank of a replica's
// pipeline. On every rank the replicas have the same to update, but for a parameter's size: the
// largest go first, each to the replica that has least.
std::vector<int> update_owners(const ParameterRegistry& whole, const std::vector<SiteSet>& sites,
                               int replicas);

}  // namespace attnres
