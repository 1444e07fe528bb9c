// Studies made up for tests, with laws planted in their losses.
#pragma once

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "attnres/support/json.h"
#include "attnres/support/random.h"

namespace attnres::testing {

// Residual and block at five sizes with three seeds each. The block runs need 1 / advantage of the
// compute. Chance that both arms of a seed share, and a tenth of it of each run by itself.
inline Json planted_study(double advantage, double noise = 0.004) {
  const RandomStream shared(1, "shared"), own(2, "own");
  Json runs = Json::array();
  uint64_t run = 0, pair = 0;
  for (int seed = 1; seed <= 3; ++seed) {
    for (int size = 0; size < 5; ++size, ++pair) {
      for (const char* mixing : {"residual", "block"}) {
        const double flops = 1e13 * std::pow(3.0, size);
        const bool is_block = mixing == std::string("block");
        const double compute = flops * (is_block ? advantage : 1);
        const double loss = 2 * std::pow(compute / 1e14, -0.06) *
                            std::exp(noise * (shared.normal(pair) + 0.1 * own.normal(run++)));
        const std::string width = std::to_string(32 * (size + 1));
        runs.push_back(
            {{"name", std::string(mixing) + "-" + width + "-seed" + std::to_string(seed)},
             {"arms", {{"mixing", mixing}, {"width", width}}},
             {"seed", seed},
             {"role", "run"},
             {"state", "done"},
             {"step", 200},
             {"steps", 200},
             {"parameters", 1000 * (size + 1)},
             {"tokens", 100000},
             {"flops", flops},
             {"from", nullptr},
             {"seconds", 10},
             {"final_val_loss", loss}});
      }
    }
  }
  return {{"study", "planted"},
          {"question", "Does it hold?"},
          {"claim", "It does (Fig. 4)."},
          {"figures", {{{"kind", "scaling_law"}}, {{"kind", "curve"}, {"x", "width"}}}},
          {"baseline", {{"mixing", "residual"}}},
          {"axes", {"mixing", "width"}},
          {"data", {"/book.txt"}},
          {"threads", 2},
          {"tuning", nullptr},
          {"runs", runs}};
}

}  // namespace attnres::testing
