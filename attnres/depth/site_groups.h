// Groups of sites that share phase 1 of depth attention (ops/depth_attention/two_phase.h), for
// mechanisms whose sources are the embedding and sums of blocks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "attnres/ops/depth_attention/two_phase.h"

namespace attnres {

// Sites in a group: those of a block, or of as many whole blocks as there are sites in sqrt(L),
// where phases 1 and 2 together read least (Full: Appendix B).
int64_t sites_in_group(int64_t block_size, int sublayers);

struct SiteGroup {
  int64_t end;         // the first site after it
  size_t num_earlier;  // sources that its phase 1 reads
};

// The group of a site: it depends on nothing else, so that a state may be cut anywhere in it.
// Before the first group there is the embedding only, which needs no pass of its own.
SiteGroup group_of_site(int site, int64_t block_size, int sublayers);

// Takes up what was sealed since, and leaves it where it was so that who else reads it adds to the
// same gradient.
void take_up_sealed(std::vector<at::Tensor>& sealed, std::vector<DepthSource>& sources);

}  // namespace attnres
