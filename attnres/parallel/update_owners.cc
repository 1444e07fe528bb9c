#include "attnres/parallel/update_owners.h"

#include <algorithm>

namespace attnres {

std::vector<int> update_owners(const ParameterRegistry& whole, const std::vector<SiteSet>& sites,
                               int replicas) {
  const auto& all = whole.all();
  const auto size = [&](size_t i) { return all[i].tensor.numel(); };
  std::vector<int> owners(all.size(), kOwnerOfShared);
  // By rank: the numbers that each replica updates, and the parameters that the rank alone holds.
  std::vector<std::vector<int64_t>> loads(sites.size(), std::vector<int64_t>(replicas));
  std::vector<std::vector<size_t>> own(sites.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (!is_differentiated(all[i].kind)) continue;
    const std::vector<size_t> ranks = stages_with(all[i], sites);
    if (ranks.size() == 1) own[ranks.front()].push_back(i);
    for (size_t n = 0; ranks.size() > 1 && n < ranks.size(); ++n)
      loads[ranks[n]][kOwnerOfShared] += size(i);
  }
  for (size_t rank = 0; rank < sites.size(); ++rank) {
    std::stable_sort(own[rank].begin(), own[rank].end(),
                     [&](size_t a, size_t b) { return size(a) > size(b); });
    for (const size_t i : own[rank]) {
      const auto least = std::min_element(loads[rank].begin(), loads[rank].end());
      owners[i] = static_cast<int>(least - loads[rank].begin());
      *least += size(i);
    }
  }
  return owners;
}

}  // namespace attnres
