// Parameters moved from where they start, so that all of them matter.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include "attnres/parameters/parameters.h"
#include "attnres/support/random.h"

namespace attnres::testing {

// Adds normal noise of standard deviation `scale`, which depends on the parameter's site and role.
inline void add_noise(const Parameter& p, double scale) {
  const RandomStream random(99, fmt::format("perturb.{}.{}", p.site, p.role));
  at::Tensor noise = at::empty(p.tensor.sizes(), at::kDouble);
  for (int64_t i = 0; i < noise.numel(); ++i) {
    noise.mutable_data_ptr<double>()[i] = scale * random.normal(i);
  }
  p.tensor.detach().add_(noise.to(p.tensor.scalar_type()));
}

}  // namespace attnres::testing
