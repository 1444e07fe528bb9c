// What runs while decoding, by device: for an operation a function of each device type, and one of
// tensor operations for devices that have none.
//
// It is not torch's dispatcher that chooses, for two reasons. These operations are given what its
// schemas have no types for: where the tokens of a pool lie, states that change in place, formats
// of packed numbers. And they are called for every token and site, where calls count: a look-up is
// one load, a call of the dispatcher takes as long as a small operation.
//
// The source of a device's functions enters them when it is loaded, as a library of another device
// does before anything is computed:
//
//   const OnDevice paged_attention_cpu(paged_attention_table, at::kCPU, &attend);
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>

namespace attnres {

template <class Function>
class DeviceTable {
 public:
  // Constant initialization (constinit): there before whatever enters functions.
  constexpr explicit DeviceTable(Function* composed) : composed_(composed) {
    functions_.fill(composed);
  }

  Function* of(const at::Tensor& tensor) const {
    return functions_[static_cast<size_t>(tensor.device().type())];
  }
  // Whether a function of this device was entered.
  bool has(c10::DeviceType device) const {
    return functions_.at(static_cast<size_t>(device)) != composed_;
  }
  void enter(c10::DeviceType device, Function* function) {
    functions_.at(static_cast<size_t>(device)) = function;
  }

 private:
  Function* composed_;
  std::array<Function*, c10::COMPILE_TIME_MAX_DEVICE_TYPES> functions_{};
};

// Enters a function where it is defined.
struct OnDevice {
  template <class Function>
  OnDevice(DeviceTable<Function>& table, c10::DeviceType device, Function* function) {
    table.enter(device, function);
  }
};

}  // namespace attnres
