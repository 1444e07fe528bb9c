// Products of small matrices in cache, of which the CPU's side of operations builds larger ones:
// oneDNN's, as libtorch lends them (brgemm), in float32, or of bfloat16 numbers summed in float32.
// kernel.h arranges operands.
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <functional>

#include "attnres/ops/storage.h"

namespace attnres {

// Whether this processor has them for numbers of this dtype.
bool has_small_products(at::ScalarType dtype);

// Calls f(first, last) for parts of [0, count) on all threads. There, and only there, may it
// multiply: a processor's matrix unit (AMX) is set up by the first product, and given back at the
// end, since oneDNN's other products set it up for themselves.
void with_small_products(int64_t count, const std::function<void(int64_t first, int64_t last)>& f);

// C = A B, or C + A B where `add` is true: A [m, k], B [k, n], C [m, n], whose rows lie lda, ldb
// and ldc numbers apart. Of bfloat16, k is even and B [k/2, n, 2]: its rows in pairs, each number
// of the one beside that of the other, pairs 2 ldb apart.
void multiply(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
              int64_t ldb, float* c, int64_t ldc, bool add);
void multiply(int64_t m, int64_t n, int64_t k, const kernel::BFloat16* a, int64_t lda,
              const kernel::BFloat16* b, int64_t ldb, float* c, int64_t ldc, bool add);

}  // namespace attnres
