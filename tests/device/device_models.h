// Models on the pretend device.
#pragma once

#include <utility>

#include "attnres/model/device_copy.h"
#include "tests/device/pretend_device.h"
#include "tests/model/kinds_of_models.h"

namespace attnres::testing {

// The same model there.
inline Transformer on_pretend_device(const Transformer& model) {
  return std::move(*copy_to_device(model, pretend_device()));
}

}  // namespace attnres::testing
