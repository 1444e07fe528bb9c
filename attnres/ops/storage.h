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

// MACRO for each storage type; for those that are computed in float32; for those that are computed
// as they are stored.
#define ATTNRES_FOR_STORAGE_TYPES(MACRO, ...) \
  MACRO(f32, float, __VA_ARGS__)              \
  MACRO(f64, double, __VA_ARGS__)             \
  MACRO(bf16, BFloat16, __VA_ARGS__)
#define ATTNRES_FOR_SINGLE_TYPES(MACRO, ...) \
  MACRO(f32, float, __VA_ARGS__)             \
  MACRO(bf16, BFloat16, __VA_ARGS__)
#define ATTNRES_FOR_NUMBER_TYPES(MACRO, ...) \
  MACRO(f32, float, __VA_ARGS__)             \
  MACRO(f64, double, __VA_ARGS__)

// Declares the kernel NAME(operation, first, last) for OPERATION of these types: a range of its
// tokens, or of what else the kernel says. With sums, it also takes a pointer to those to which the
// range adds, in the compute type.
#define ATTNRES_DECLARE(NAME, OPERATION) \
  ATTNRES_FOR_STORAGE_TYPES(ATTNRES_DECLARE_ONE, NAME, OPERATION)
#define ATTNRES_DECLARE_SINGLE(NAME, OPERATION) \
  ATTNRES_FOR_SINGLE_TYPES(ATTNRES_DECLARE_ONE, NAME, OPERATION)
#define ATTNRES_DECLARE_NUMBERS(NAME, OPERATION) \
  ATTNRES_FOR_NUMBER_TYPES(ATTNRES_DECLARE_ONE, NAME, OPERATION)
#define ATTNRES_DECLARE_ONE(SUFFIX, STORAGE, NAME, OPERATION) \
  void NAME(const OPERATION<STORAGE>&, int64_t first, int64_t last);
#define ATTNRES_DECLARE_WITH_SUMS(NAME, OPERATION) \
  ATTNRES_FOR_STORAGE_TYPES(ATTNRES_DECLARE_ONE_WITH_SUMS, NAME, OPERATION)
#define ATTNRES_DECLARE_ONE_WITH_SUMS(SUFFIX, STORAGE, NAME, OPERATION) \
  void NAME(const OPERATION<STORAGE>&, int64_t first, int64_t last, Compute<STORAGE>* sums);
