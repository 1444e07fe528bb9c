#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include "attnres/ops/processor.h"
#include "attnres/ops/small_products/small_products.h"

namespace attnres {

bool has_small_products(at::ScalarType dtype) {
  const Processor& here = processor();
  return here.avx512 && here.has_onednn &&
         (dtype == at::kFloat || (dtype == at::kBFloat16 && here.bfloat16));
}

void with_small_products(int64_t count, const std::function<void(int64_t, int64_t)>& f) {
  struct GivesBack {
    ~GivesBack() { at::native::cpublas::brgemm_release(); }
  };
  at::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
    const GivesBack at_the_end;
    f(first, last);
  });
}

void multiply(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
              int64_t ldb, float* c, int64_t ldc, bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, a, b, c, /*is_vnni=*/false);
}

void multiply(int64_t m, int64_t n, int64_t k, const kernel::BFloat16* a, int64_t lda,
              const kernel::BFloat16* b, int64_t ldb, float* c, int64_t ldc, bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, reinterpret_cast<const at::BFloat16*>(a),
                              reinterpret_cast<const at::BFloat16*>(b), c, /*is_vnni=*/true);
}

}  // namespace attnres
