// The types in which the kernels' tensors are stored, and in which they are computed.
#pragma once

#include <cstdint>
#include <type_traits>

namespace attnres::kernel {

// Bfloat16 as stored: the upper half of a float32. Arithmetic on it is done in float32, and
// results are rounded to the nearest, ties to even.
struct BFloat16 {
  uint16_t bits;
};

// What a storage type is computed in.
template <class Storage>
struct ComputeType {
  using Type = Storage;
};
template <>
struct ComputeType<BFloat16> {
  using Type = float;
};
template <class Storage>
using Compute = typename ComputeType<Storage>::Type;

// Whether sums in the compute type are something else than the storage holds.
template <class Storage>
inline constexpr bool kHasSums = !std::is_same_v<Storage, Compute<Storage>>;

}  // namespace attnres::kernel
