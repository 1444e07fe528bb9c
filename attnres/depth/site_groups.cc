#include "attnres/depth/site_groups.h"

#include <algorithm>
#include <cmath>

namespace attnres {

int64_t sites_in_group(int64_t block_size, int sublayers) {
  const auto root = static_cast<int64_t>(std::sqrt(static_cast<double>(sublayers)));
  return std::max<int64_t>(1, root / block_size) * block_size;
}

SiteGroup group_of_site(int site, int64_t block_size, int sublayers) {
  const int64_t sites = sites_in_group(block_size, sublayers), begin = site / sites * sites;
  const int64_t num_earlier = begin == 0 ? 0 : 1 + begin / block_size;
  return {.end = begin + sites, .num_earlier = static_cast<size_t>(num_earlier)};
}

void take_up_sealed(std::vector<at::Tensor>& sealed, std::vector<DepthSource>& sources) {
  while (sources.size() < sealed.size()) {
    at::Tensor& source = sealed[sources.size()];
    sources.emplace_back(source);
    source = sources.back().value();
  }
}

}  // namespace attnres
