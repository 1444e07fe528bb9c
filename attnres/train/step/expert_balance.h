// Experts kept equally busy without an auxiliary loss (Wang et al., arXiv 2408.15664): after each
// step, the router bias of every site moves by the load of its experts in that step.
#pragma once

#include "attnres/model/transformer.h"
#include "attnres/parameters/parameters.h"

namespace attnres {

// `balance` (layers/experts.h) on the parameter of kind router_bias at each site that has a load,
// but beside a router that is not trained. Throws Error where a site has none.
void balance_experts(const ParameterRegistry& parameters, const ExpertLoads& loads, double rate);

// Loads over the mean load of their site; 1 and 1 where all are equally busy.
struct LoadRange {
  double least = 0, most = 0;
};
// Over all sites. `loads` must not be empty, and lie on the CPU.
LoadRange load_range(const ExpertLoads& loads);

}  // namespace attnres
