// The vocabulary of kernels for CUDA. Their bodies are templates on a Block, which is what a thread
// knows of its thread block: CudaBlock on the GPU, and in tests HostBlock, whose threads take turns
// on the host. Both give the same bits: e^x is ours, and fused products and sums are written out
// (they are compiled with -fmad=false). No tensor library.
//
// A Block has: thread(), threads(), index() and count() of blocks, sync(), sync_warp(),
// exchange(x, mask) with the lane whose number differs in these bits, shared(), prefetch(from), and
// copies to shared memory that go on beside the thread: begin_copy(to, from) of 4, 8 or 16 bytes,
// end_copies() after those that belong together, wait_for_copies<n>() until at most the n latest
// such groups are under way.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attnres/ops/storage.h"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#define ATTNRES_DEVICE __host__ __device__ __forceinline__
#define ATTNRES_UNROLL _Pragma("unroll")
#else
#include <cmath>
#define ATTNRES_DEVICE inline
#define ATTNRES_UNROLL
#endif

namespace attnres::gpu {

using kernel::BFloat16;

inline constexpr int kWarp = 32;

// ---- Numbers ----

ATTNRES_DEVICE float fma(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

ATTNRES_DEVICE float root(float x) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}

ATTNRES_DEVICE float quotient(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

// The natural logarithm. The last bit of the host's may differ.
ATTNRES_DEVICE float logarithm(float x) {
#ifdef __CUDA_ARCH__
  return ::logf(x);
#else
  return __builtin_logf(x);
#endif
}

ATTNRES_DEVICE float as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

ATTNRES_DEVICE uint32_t as_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

// a, unless b is larger: what is not a number stays in a, and is passed over in b.
ATTNRES_DEVICE float larger(float a, float b) {
  return b > a ? b : a;
}

// 1 / sqrt(square / width + eps)
ATTNRES_DEVICE float inverse_rms(float square, int width, float eps) {
  return quotient(1.0f, root(quotient(square, static_cast<float>(width)) + eps));
}

// e^x for x <= 0, with a relative error of at most 2e-7; below -86 it is e^-86. 2^k times a
// polynomial.
ATTNRES_DEVICE float exp_of_negative(float x) {
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693145752f, kLn2Low = 1.42860677e-6f;
  constexpr float kRounding =
      12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to a whole number
  x = larger(x, -86.0f);
  const float k = fma(x, kLog2E, kRounding) - kRounding;
  const float f = fma(k, -kLn2Low, fma(k, -kLn2High, x));
  float p = 1.98412698e-4f;  // 1 / 7!
  p = fma(p, f, 1.38888889e-3f);
  p = fma(p, f, 8.33333333e-3f);
  p = fma(p, f, 4.16666667e-2f);
  p = fma(p, f, 1.66666667e-1f);
  p = fma(p, f, 0.5f);
  p = fma(p, f, 1.0f);
  p = fma(p, f, 1.0f);
  // An x that is no number has an f and p that are none, and any k.
  const int32_t exponent = x < 1 ? static_cast<int32_t>(k) : 0;
  return as_float(as_bits(p) + (static_cast<uint32_t>(exponent) << 23));
}

// ---- Memory ----

// What a thread loads and stores at once: 8 or 16 bytes.
template <int kWords>
struct alignas(4 * kWords) Words {
  static_assert(kWords == 2 || kWords == 4);
  uint32_t words[kWords];
};

// kN numbers as they are stored.
template <class Storage, int kN>
using Packed = Words<kN* static_cast<int>(sizeof(Storage)) / 4>;

template <class Storage>
inline constexpr int kNumbers = 16 / static_cast<int>(sizeof(Storage));

template <class Storage, int kN>
ATTNRES_DEVICE void unpack(const Packed<Storage, kN>& packed, float (&to)[kN]) {
  ATTNRES_UNROLL
  for (int i = 0; i < kN; ++i) {
    if constexpr (sizeof(Storage) == 4) {
      to[i] = as_float(packed.words[i]);
    } else {
      to[i] = as_float(i % 2 == 0 ? packed.words[i / 2] << 16 : packed.words[i / 2] & 0xffff0000u);
    }
  }
}

// Two numbers rounded to bfloat16, to the nearest, ties to even; what is no number stays none.
ATTNRES_DEVICE uint32_t rounded_pair(float low, float high) {
#ifdef __CUDA_ARCH__
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
#else
  const auto rounded = [](float x) -> uint32_t {
    const uint32_t bits = as_bits(x);
    return x != x ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  };
  return rounded(low) | rounded(high) << 16;
#endif
}

template <class Storage, int kN>
ATTNRES_DEVICE Packed<Storage, kN> pack(const float (&x)[kN]) {
  Packed<Storage, kN> packed;
  ATTNRES_UNROLL
  for (int i = 0; i < kN; ++i) {
    if constexpr (sizeof(Storage) == 4) {
      packed.words[i] = as_bits(x[i]);
    } else if (i % 2 == 0) {
      packed.words[i / 2] = rounded_pair(x[i], x[i + 1]);
    }
  }
  return packed;
}

template <int kWords>
ATTNRES_DEVICE void store(void* to, const Words<kWords>& v) {
#ifdef __CUDA_ARCH__
  if constexpr (kWords == 4) {
    *static_cast<uint4*>(to) = make_uint4(v.words[0], v.words[1], v.words[2], v.words[3]);
  } else {
    *static_cast<uint2*>(to) = make_uint2(v.words[0], v.words[1]);
  }
#else
  memcpy(to, &v, sizeof v);
#endif
}

template <int kWords>
ATTNRES_DEVICE Words<kWords> load(const void* from) {
  Words<kWords> v;
#ifdef __CUDA_ARCH__
  if constexpr (kWords == 4) {
    const uint4 u = *static_cast<const uint4*>(from);
    v.words[0] = u.x, v.words[1] = u.y, v.words[2] = u.z, v.words[3] = u.w;
  } else {
    const uint2 u = *static_cast<const uint2*>(from);
    v.words[0] = u.x, v.words[1] = u.y;
  }
#else
  memcpy(&v, from, sizeof v);
#endif
  return v;
}

// Of memory that nothing writes while the kernel runs.
template <int kWords>
ATTNRES_DEVICE Words<kWords> load_constant(const void* from) {
#ifdef __CUDA_ARCH__
  Words<kWords> v;
  if constexpr (kWords == 4) {
    const uint4 u = __ldg(static_cast<const uint4*>(from));
    v.words[0] = u.x, v.words[1] = u.y, v.words[2] = u.z, v.words[3] = u.w;
  } else {
    const uint2 u = __ldg(static_cast<const uint2*>(from));
    v.words[0] = u.x, v.words[1] = u.y;
  }
  return v;
#else
  return load<kWords>(from);
#endif
}

// Rows of Storage: kN numbers from an address that is a multiple of their size.
template <class Storage, int kN>
ATTNRES_DEVICE void load_row(const Storage* from, float (&to)[kN]) {
  unpack<Storage>(load<kN* static_cast<int>(sizeof(Storage)) / 4>(from), to);
}
template <class Storage, int kN>
ATTNRES_DEVICE void load_constant_row(const Storage* from, float (&to)[kN]) {
  unpack<Storage>(load_constant<kN* static_cast<int>(sizeof(Storage)) / 4>(from), to);
}
template <class Storage, int kN>
ATTNRES_DEVICE void store_row(Storage* to, const float (&from)[kN]) {
  store(to, pack<Storage>(from));
}

// Floats, whatever the rows are stored in.
template <int kCount>
ATTNRES_DEVICE void load_floats(const float* from, float (&to)[kCount]) {
  ATTNRES_UNROLL
  for (int i = 0; i < kCount; i += 4) {
    const Words<4> v = load<4>(from + i);
    ATTNRES_UNROLL
    for (int j = 0; j < 4; ++j) to[i + j] = as_float(v.words[j]);
  }
}

template <int kCount>
ATTNRES_DEVICE void load_constant_floats(const float* from, float (&to)[kCount]) {
  ATTNRES_UNROLL
  for (int i = 0; i < kCount; i += 4) {
    const Words<4> v = load_constant<4>(from + i);
    ATTNRES_UNROLL
    for (int j = 0; j < 4; ++j) to[i + j] = as_float(v.words[j]);
  }
}

template <int kCount>
ATTNRES_DEVICE void store_floats(float* to, const float (&from)[kCount]) {
  ATTNRES_UNROLL
  for (int i = 0; i < kCount; i += 4) {
    Words<4> v;
    ATTNRES_UNROLL
    for (int j = 0; j < 4; ++j) v.words[j] = as_bits(from[i + j]);
    store(to + i, v);
  }
}

// ---- The block on the GPU ----

#ifdef __CUDACC__
struct CudaBlock {
  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ __forceinline__ int index() const { return static_cast<int>(blockIdx.x); }
  __device__ __forceinline__ int count() const { return static_cast<int>(gridDim.x); }
  __device__ __forceinline__ void sync() const { __syncthreads(); }
  __device__ __forceinline__ void sync_warp() const { __syncwarp(); }
  __device__ __forceinline__ float exchange(float x, int mask) const {
    return __shfl_xor_sync(0xffffffffu, x, mask);
  }
  __device__ __forceinline__ float* shared() const {
    extern __shared__ __align__(16) float memory[];
    return memory;
  }
  __device__ __forceinline__ void begin_copy(Words<4>* to, const void* from) const {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(address(to)), "l"(from)
                 : "memory");
  }
  __device__ __forceinline__ void begin_copy(Words<2>* to, const void* from) const {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8;" ::"r"(address(to)), "l"(from)
                 : "memory");
  }
  __device__ __forceinline__ void begin_copy(float* to, const float* from) const {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address(to)), "l"(from)
                 : "memory");
  }
  __device__ __forceinline__ void prefetch(const void* from) const {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
  }
  __device__ __forceinline__ void end_copies() const {
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  template <int kUnderWay>
  __device__ __forceinline__ void wait_for_copies() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(kUnderWay) : "memory");
  }

 private:
  static __device__ __forceinline__ uint32_t address(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }
};
#endif

// ---- Sums of a block's threads ----

// Each lane keeps half of 2 kMask numbers, and gets their other half from the lane that keeps the
// rest.
template <int kMask, int kCount, class Block>
ATTNRES_DEVICE void halve(const Block& block, float (&x)[kCount]) {
  if constexpr (kMask > 0) {
    const bool upper = (block.thread() & kMask) != 0;
    ATTNRES_UNROLL
    for (int i = 0; i < kMask; ++i) {
      const float kept = upper ? x[i + kMask] : x[i], given = upper ? x[i] : x[i + kMask];
      x[i] = kept + block.exchange(given, kMask);
    }
    halve<kMask / 2>(block, x);
  }
}

// Of kCount numbers a lane, a power of two up to 32, each one's sum over the warp: lane i gets that
// of number i % kCount.
template <int kCount, class Block>
ATTNRES_DEVICE float warp_sums(const Block& block, float (&x)[kCount]) {
  halve<kCount / 2>(block, x);
  float sum = x[0];
  ATTNRES_UNROLL
  for (int mask = kCount; mask < kWarp; mask *= 2) sum += block.exchange(sum, mask);
  return sum;
}

// Sums over all of a block's threads, of up to `turns` times 32 numbers, by shared memory of
// floats(turns, warps). After all warps have given theirs, and a sync, every warp reads all: lane i
// of turn k gets the i-th. Two memories by turns need no second sync.
class BlockSums {
 public:
  ATTNRES_DEVICE BlockSums(float* memory, int turns) : memory_(memory), turns_(turns) {}

  static constexpr int floats(int turns, int warps) { return turns * warps * kWarp; }

  template <class Block>
  ATTNRES_DEVICE void give(const Block& block, int turn, float sum_of_warp) {
    memory_[(block.thread() / kWarp * turns_ + turn) * kWarp + block.thread() % kWarp] =
        sum_of_warp;
  }

  template <class Block>
  ATTNRES_DEVICE float take(const Block& block, int turn) const {
    const int warps = block.threads() / kWarp, lane = block.thread() % kWarp;
    float sum = memory_[turn * kWarp + lane];
    for (int w = 1; w < warps; ++w) sum += memory_[(w * turns_ + turn) * kWarp + lane];
    return sum;
  }

  // The first kCount of the only turn, to every thread.
  template <int kCount, class Block>
  ATTNRES_DEVICE void take_all(const Block& block, float (&sums)[kCount]) const {
    ATTNRES_UNROLL
    for (int i = 0; i < kCount; ++i) sums[i] = memory_[i];
    for (int w = 1; w < block.threads() / kWarp; ++w) {
      ATTNRES_UNROLL
      for (int i = 0; i < kCount; ++i) sums[i] += memory_[w * kWarp + i];
    }
  }

 private:
  float* memory_;
  int turns_;
};

// ---- Sizes ----

// Up to 512 threads a block, so that a thread may have 128 registers.
inline constexpr int kMostThreads = 512, kMostWidth = 8192, kWidthStep = 8;

constexpr bool has_width(int64_t width) {
  return width > 0 && width <= kMostWidth && width % kWidthStep == 0;
}

// A block has one row at a time: each thread kVectors times kN numbers of it, the i-th ones from
// channel (thread + i * threads) * kN on.
template <int kN, int kVectors>
constexpr int threads_of_width(int width) {
  constexpr int kOfThread = kN * kVectors;
  return ((width + kOfThread - 1) / kOfThread + kWarp - 1) / kWarp * kWarp;
}

template <int kN, class Block>
ATTNRES_DEVICE int channel(const Block& block, int i) {
  return (block.thread() + i * block.threads()) * kN;
}

// Calls f with the fewest vectors a thread, from kLeast on, that a row of this width needs.
template <int kN, int kLeast, class F>
void with_vectors(int width, const F& f) {
  if constexpr (kLeast * kN * kMostThreads < kMostWidth) {
    if (width > kLeast * kN * kMostThreads) return with_vectors<kN, 2 * kLeast>(width, f);
  }
  f(std::integral_constant<int, kLeast>());
}

// Sums over tokens are those of runs of tokens, one a block, added up in their order: the same bits
// on every GPU. Their sums are of at most a million numbers a row, or of 128 runs.
constexpr int runs_of_tokens(int64_t tokens, int64_t width) {
  constexpr int64_t kMostNumbers = 1 << 20, kFewest = 128, kMostRuns = 1024, kShortest = 4;
  int64_t runs = kMostNumbers / width;
  if (runs < kFewest) runs = kFewest;
  if (runs > kMostRuns) runs = kMostRuns;
  const int64_t most = (tokens + kShortest - 1) / kShortest;
  if (runs > most) runs = most;
  return static_cast<int>(runs < 1 ? 1 : runs);
}

struct TokenRun {
  int64_t first, last;  // before `last`
};

// A block's.
template <class Block>
ATTNRES_DEVICE TokenRun run_of_tokens(const Block& block, int64_t tokens) {
  return {tokens * block.index() / block.count(), tokens * (block.index() + 1) / block.count()};
}

// Blocks of a launch where `resident` can be there at once: any number gives the same, but where
// each has a run of tokens.
template <class Kernel>
int64_t blocks_of(const typename Kernel::Operation& op, int64_t resident) {
  const int64_t most = Kernel::most_blocks(op);
  return Kernel::kBlockARun || most < resident ? most : resident;
}

}  // namespace attnres::gpu
