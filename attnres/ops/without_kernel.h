// What runs composed of tensor operations on a device, by name.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace attnres {

// Operations that have kernels for the CPU and none for devices of this type, as far as its library
// is loaded: "paged attention", "situ", in alphabetical order. Backwards go with their operations.
std::vector<std::string> operations_without_kernel(c10::DeviceType device);

}  // namespace attnres
