// What every layer is told beside its own settings: what the model's layers have in common, and
// which of them it is.
#pragma once

#include <cstdint>

#include "attnres/layers/sublayer.h"
#include "attnres/parameters/parameters.h"

namespace attnres {

struct LayerPlace {
  int64_t width = 0;       // D, of what it reads and gives
  double norm_eps = 1e-6;  // of norms within it
  double init_std = 0.02;  // of weights at the start, before the factors of `needs`
  SublayerNeeds needs = {};
  int site = 0;

  // How weights start: of query and key maps, of all others, and of the last map.
  Init plain_init() const { return Init::normal(init_std); }
  Init inner_init() const { return Init::normal(init_std * needs.init_gain); }
  Init last_init() const {
    return Init::normal(init_std * needs.init_gain * needs.output_init_gain);
  }
};

}  // namespace attnres
