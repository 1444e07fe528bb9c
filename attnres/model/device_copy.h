// A model, again on another device.
#pragma once

#include <memory>

#include "attnres/model/transformer.h"

namespace attnres {

// Packed weights stay as they are.
std::unique_ptr<Transformer> copy_to_device(const Transformer& model, at::Device device);

}  // namespace attnres
