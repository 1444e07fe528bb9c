// Where each site looks, token by token.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "attnres/model/transformer.h"

namespace attnres {

struct TokenDepthWeights {
  int site = 0;
  std::string name;  // site_name
  std::vector<std::string> sources;
  std::vector<std::vector<double>> weights;  // [tokens][sources]; those of a token sum to 1
};

// The weights of a text's T tokens, int64 ids_T, by site; empty for mechanisms without them.
std::vector<TokenDepthWeights> token_depth_weights(const Transformer& model,
                                                   const at::Tensor& ids_T);

// The weights of a token averaged over the sites that have a choice, which is two sources or more:
// a source that a site does not read has no weight there. Sources in the order in which they first
// appear, the partial sum, which is another one in each block, last. Empty when no site has one.
TokenDepthWeights mean_over_sites(const std::vector<TokenDepthWeights>& sites);

// The names of all sources of these, in that order.
std::vector<std::string> all_sources(const std::vector<std::vector<std::string>>& sources_of_sites);

}  // namespace attnres
