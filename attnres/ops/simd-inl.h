// What the kernels of all operations share: loads and stores by storage type, and loops over rows
// of any width and alignment. Included once per instruction set, after hwy/highway.h.
#if defined(ATTNRES_OPS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNRES_OPS_SIMD_INL_H_
#undef ATTNRES_OPS_SIMD_INL_H_
#else
#define ATTNRES_OPS_SIMD_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attnres/ops/storage.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// D is the tag of a vector of the compute type; memory holds the compute type or bfloat16.
template <class D>
using BFloat16Bits = hn::Rebind<uint16_t, D>;

template <class D>
HWY_INLINE hn::Vec<D> widened(D d, hn::Vec<BFloat16Bits<D>> bits) {
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

// To the nearest, ties to even.
template <class D>
HWY_INLINE hn::Vec<BFloat16Bits<D>> rounded_to_bfloat16(D, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> d32;
  const hn::RebindToSigned<D> d32_signed;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto to_even = hn::Add(odd, hn::Set(d32, 0x7fff));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, to_even));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(v));
  const auto halves = hn::IfThenElse(is_nan, hn::Set(d32, 0x7fc0), rounded);
  return hn::DemoteTo(BFloat16Bits<D>(), hn::BitCast(d32_signed, halves));
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const BFloat16* from) {
  return widened(d, hn::LoadU(BFloat16Bits<D>(), reinterpret_cast<const uint16_t*>(from)));
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, hn::TFromD<D>* to) {
  hn::StoreU(v, d, to);
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, BFloat16* to) {
  hn::StoreU(rounded_to_bfloat16(d, v), BFloat16Bits<D>(), reinterpret_cast<uint16_t*>(to));
}

// Past the caches, where `to` is aligned to a vector: for what is not read again soon.
template <class D>
HWY_INLINE void stream(D d, hn::Vec<D> v, hn::TFromD<D>* to) {
  hn::Stream(v, d, to);
}

template <class D>
HWY_INLINE void stream(D d, hn::Vec<D> v, BFloat16* to) {
  store(d, v, to);
}

// How many channels a step of a loop handles: a whole vector, or the rest of the row. Missing
// channels read as zeros, which change no sum.
struct Whole {};
struct Part {
  size_t count;
};

// Where instructions take a mask and touch nothing beyond it. A copy from the stack, whose pieces
// the processor has to put together, takes several times as long.
inline constexpr bool kHasMasks = !HWY_MEM_OPS_MIGHT_FAULT;

template <class D>
HWY_INLINE hn::Vec<D> load_first(D d, const hn::TFromD<D>* from, size_t count) {
  return hn::MaskedLoad(hn::FirstN(d, count), d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load_first(D d, const BFloat16* from, size_t count) {
  return widened(d, load_first(BFloat16Bits<D>(), reinterpret_cast<const uint16_t*>(from), count));
}

template <class D>
HWY_INLINE void store_first(D d, hn::Vec<D> v, hn::TFromD<D>* to, size_t count) {
  hn::BlendedStore(v, hn::FirstN(d, count), d, to);
}

template <class D>
HWY_INLINE void store_first(D d, hn::Vec<D> v, BFloat16* to, size_t count) {
  store_first(BFloat16Bits<D>(), rounded_to_bfloat16(d, v), reinterpret_cast<uint16_t*>(to), count);
}

template <class D, class Storage>
HWY_INLINE hn::Vec<D> load(D d, const Storage* from, Whole) {
  return load(d, from);
}

template <class D, class Storage>
HWY_INLINE hn::Vec<D> load(D d, const Storage* from, Part part) {
  if constexpr (kHasMasks) return load_first(d, from, part.count);
  Storage whole[hn::MaxLanes(d)] = {};
  std::copy_n(from, part.count, whole);
  return load(d, static_cast<const Storage*>(whole));
}

template <class D, class Storage>
HWY_INLINE void store(D d, hn::Vec<D> v, Storage* to, Whole) {
  store(d, v, to);
}

template <class D, class Storage>
HWY_INLINE void store(D d, hn::Vec<D> v, Storage* to, Part part) {
  if constexpr (kHasMasks) return store_first(d, v, to, part.count);
  Storage whole[hn::MaxLanes(d)];
  store(d, v, static_cast<Storage*>(whole));
  std::copy_n(whole, part.count, to);
}

// Stores a row's next channels, past the caches if `streaming`.
template <class D, class Storage>
HWY_INLINE void put(D d, hn::Vec<D> v, Storage* to, bool streaming, Whole) {
  streaming ? stream(d, v, to) : store(d, v, to);
}

template <class D, class Storage>
HWY_INLINE void put(D d, hn::Vec<D> v, Storage* to, bool, Part part) {
  store(d, v, to, part);
}

// Whether rows of this tensor can be stored past the caches, and it is large enough for that to
// pay: more than stays in a core's own cache.
template <class Storage>
bool worth_streaming(const Storage* tensor, int64_t rows, int64_t width) {
  constexpr size_t kVector = 64, kLarge = size_t{4} << 20;
  const size_t row = width * sizeof(Storage);
  return rows * row >= kLarge && row % kVector == 0 &&
         reinterpret_cast<uintptr_t>(tensor) % kVector == 0;
}

// Calls f(k, Whole or Part) for the channels k, k + 1, ... of a row.
template <class D, class F>
HWY_INLINE void for_each_vector(D d, size_t width, const F& f) {
  const size_t lanes = hn::Lanes(d);
  size_t k = 0;
  for (; k + lanes <= width; k += lanes) f(k, Whole{});
  if (k < width) f(k, Part{width - k});
}

// The same for loops that work on U vectors at a time where a row has as many: calls
// step.operator()<number of vectors>(k, Whole or Part).
template <int U, class D, class F>
HWY_INLINE void for_each_vectors(D d, size_t width, const F& step) {
  const size_t lanes = hn::Lanes(d);
  size_t k = 0;
  for (; k + U * lanes <= width; k += U * lanes) step.template operator()<U>(k, Whole{});
  for (; k + lanes <= width; k += lanes) step.template operator()<1>(k, Whole{});
  if (k < width) step.template operator()<1>(k, Part{width - k});
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#endif  // per target
