// The products of linear maps, by each provider, and who is chosen.
#include "attnres/ops/matmul/products.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "attnres/ops/small_products/small_products.h"
#include "attnres/support/error.h"
#include "attnres/support/interrupt.h"
#include "tests/tolerances.h"

namespace attnres::products_test {
namespace {

using at::Tensor;
using testing::close;
using ::testing::HasSubstr;

constexpr Product kProducts[] = {Product::output, Product::input_gradient,
                                 Product::weight_gradient};

struct Operands {
  Tensor x, weight, grad;

  const Tensor& a(Product which) const { return which == Product::output ? x : grad; }
  const Tensor& b(Product which) const { return which == Product::weight_gradient ? x : weight; }
  // In float64, of the numbers as they are stored.
  Tensor expected(Product which) const {
    const Tensor left = a(which).to(at::kDouble), right = b(which).to(at::kDouble);
    if (which == Product::output) return left.mm(right.t());
    return (which == Product::weight_gradient ? left.t() : left).mm(right);
  }
};

Operands operands(int64_t M, int64_t N, int64_t K, at::ScalarType dtype = at::kFloat) {
  return {at::randn({M, K}).to(dtype), at::randn({N, K}).to(dtype), at::randn({M, N}).to(dtype)};
}

// Those of float32 products here.
std::vector<Provider> providers(Product which) {
  std::vector<Provider> providers = {Provider::libtorch};
  if (which == Product::output) providers.push_back(Provider::streaming);
  const bool has_onednn =
      which == Product::weight_gradient ? has_small_products(at::kFloat) : processor().has_onednn;
  if (has_onednn) providers.push_back(Provider::onednn);
  return providers;
}

TEST(Products, AreThoseOfFloat64ByEveryProvider) {
  for (const auto& [M, N, K] :
       {ProductSizes{1, 7, 33}, ProductSizes{5, 64, 48}, ProductSizes{130, 33, 96},
        ProductSizes{70, 96, 1}, ProductSizes{1100, 70, 300}}) {
    const Operands o = operands(M, N, K);
    Operands other = o;
    other.x = o.x.flip(-1);
    other.grad = o.grad.flip(0);
    for (const Product which : kProducts) {
      for (const Provider provider : providers(which)) {
        const Tensor result = product(which, o.a(which), o.b(which), provider);
        EXPECT_TRUE(close(result, o.expected(which))) << M << " " << N << " " << K;
        if (K == 1 || M == 1) continue;
        EXPECT_FALSE(close(result, other.expected(which))) << M << " " << N << " " << K;
      }
    }
  }
}

// Multiplies under a rain of signals; whether all came out as without.
bool multiplies_under_signals() {
  at::set_num_threads(1);
  const Operands o = operands(128, 32, 96);
  const Product which = Product::output;
  const Tensor expected = product(which, o.x, o.weight, Provider::onednn);
  const InterruptGuard guard;
  const std::jthread sender([target = ::pthread_self()](const std::stop_token& stop) {
    while (!stop.stop_requested()) ::pthread_kill(target, SIGHUP);
  });
  bool equal = true;
  for (int i = 0; i < 1000; ++i) {
    equal = equal && at::equal(product(which, o.x, o.weight, Provider::onednn), expected);
  }
  return equal && interrupted();
}

// oneDNN's kernels let the stack pointer point into their workspace on the heap, and a signal's
// frame below it overwrites what lies there: uxlfoundation/oneDNN#4845.
TEST(Products, AreUnharmedBySignals) {
  if (!processor().has_onednn) GTEST_SKIP() << "not on this processor";
  const pid_t child = ::fork();
  if (child == 0) ::_exit(multiplies_under_signals() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Products, OfWeightsGradientsInBfloat16AreSummedInFloat32) {
  if (!has_small_products(at::kBFloat16)) GTEST_SKIP() << "not on this processor";
  for (const int64_t M : {1, 2, 65, 1025}) {
    const Operands o = operands(M, 70, 300, at::kBFloat16);
    const Tensor sum = product(Product::weight_gradient, o.grad, o.x, Provider::onednn);
    EXPECT_EQ(sum.scalar_type(), at::kFloat);
    EXPECT_TRUE(close(sum, o.expected(Product::weight_gradient), 1e-5)) << M;
  }
}

// oneDNN's sums over tokens are ours; MKL's on Intel's processors depend on the threads.
TEST(Products, OfWeightsGradientsHaveTheSameBitsForAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    if (!has_small_products(dtype)) GTEST_SKIP() << "not on this processor";
    const Operands o = operands(1500, 200, 600, dtype);
    const auto gradient = [&] {
      return product(Product::weight_gradient, o.grad, o.x, Provider::onednn);
    };
    at::set_num_threads(1);
    const Tensor alone = gradient();
    at::set_num_threads(3);
    EXPECT_TRUE(at::equal(gradient(), alone));
    at::set_num_threads(threads);
  }
}

TEST(Products, ReadOperandsThatAreNotContiguous) {
  Operands o = operands(40, 24, 32);
  o.x = at::randn({32, 40}).t();
  o.weight = at::randn({24, 64}).narrow(1, 16, 32);
  o.grad = at::randn({40, 48}).narrow(1, 24, 24);
  for (const Product which : kProducts) {
    for (const Provider provider : providers(which)) {
      EXPECT_TRUE(close(product(which, o.a(which), o.b(which), provider), o.expected(which)));
    }
  }
}

TEST(Products, AreAddedToASum) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Operands o = operands(64, 24, 32, dtype);
    for (const Product which : kProducts) {
      const Tensor before = at::randn_like(o.expected(which));
      // A sum of bfloat16 products is kept in float32, too.
      for (const at::ScalarType sum_dtype : {dtype, at::promote_types(dtype, at::kFloat)}) {
        Tensor sum = before.to(sum_dtype).clone();
        add_product(sum, which, o.a(which), o.b(which));
        EXPECT_EQ(sum.scalar_type(), sum_dtype);
        EXPECT_TRUE(close(sum, before + o.expected(which), testing::tolerance(dtype)));
        EXPECT_FALSE(close(sum, o.expected(which), testing::tolerance(dtype)));
      }
    }
  }
}

TEST(Products, AreComposedElsewhere) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Operands o = operands(64, 24, 32, dtype);
    for (const Product which : kProducts) {
      const Tensor result = product_composed(which, o.a(which), o.b(which));
      EXPECT_EQ(result.scalar_type(), product(which, o.a(which), o.b(which)).scalar_type());
      EXPECT_TRUE(close(result, o.expected(which), testing::tolerance(dtype)));
      const Tensor before = at::randn_like(o.expected(which));
      Tensor sum = before.to(result.scalar_type()).clone();
      add_product_composed(sum, which, o.a(which), o.b(which));
      EXPECT_TRUE(close(sum, before + o.expected(which), testing::tolerance(dtype)));
    }
  }
  const Operands o = operands(64, 24, 32);
  const Tensor shape = product(Product::output, o.x.to(at::kMeta), o.weight.to(at::kMeta));
  EXPECT_TRUE(shape.is_meta());
  EXPECT_EQ(shape.sizes(), at::IntArrayRef({64, 24}));
}

TEST(Provider, IsOneDnnForFloat32WhereMklStaysWithAvx2) {
  const ProductSizes sizes = {.M = 4096, .N = 1376, .K = 512};
  const Processor amd = {.amd = true, .avx512 = true, .bfloat16 = true, .has_onednn = true};
  Processor intel = amd, avx2 = amd, without = amd;
  intel.amd = false;
  avx2.avx512 = false;
  without.has_onednn = false;
  for (const Product which : kProducts) {
    EXPECT_EQ(provider_for(amd, at::kFloat, which, sizes), Provider::onednn);
    EXPECT_EQ(provider_for(amd, at::kDouble, which, sizes), Provider::libtorch);
    EXPECT_EQ(provider_for(amd, at::kBFloat16, which, sizes),
              which == Product::weight_gradient ? Provider::onednn : Provider::libtorch);
    for (const Processor& other : {intel, avx2, without}) {
      EXPECT_EQ(provider_for(other, at::kFloat, which, sizes), Provider::libtorch);
    }
  }
}

TEST(Provider, DependsOnTheProductAndItsSizes) {
  const Processor here = {.amd = true, .avx512 = true, .bfloat16 = true, .has_onednn = true};
  const auto chosen = [&](Product which, int64_t M) {
    return provider_for(here, at::kFloat, which, {.M = M, .N = 1376, .K = 512});
  };
  for (const int64_t M : {1, 32}) EXPECT_EQ(chosen(Product::output, M), Provider::streaming);
  for (const int64_t M : {128, 4096}) EXPECT_EQ(chosen(Product::output, M), Provider::onednn);
  for (const int64_t M : {33, 64, 127}) EXPECT_EQ(chosen(Product::output, M), Provider::libtorch);
  for (const int64_t M : {1, 64, 4096}) {
    EXPECT_EQ(chosen(Product::input_gradient, M), Provider::onednn);
    EXPECT_EQ(chosen(Product::weight_gradient, M), M < 64 ? Provider::libtorch : Provider::onednn);
  }
}

TEST(Provider, OfBfloat16IsRefusedWhereTheProcessorHasNone) {
  EXPECT_NO_THROW(require_bfloat16_products("train.precision", {.bfloat16 = true}));
  try {
    require_bfloat16_products("train.precision", {.amd = true, .avx512 = true});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("train.precision: this processor has no products"));
    EXPECT_THAT(error.what(), HasSubstr("use float32"));
  }
}

TEST(Provider, IsUsedForTheProduct) {
  const Operands o = operands(4096, 64, 48);
  for (const Product which : kProducts) {
    const Provider chosen =
        provider_for(processor(), at::kFloat, which, {.M = 4096, .N = 64, .K = 48});
    EXPECT_TRUE(at::equal(product(which, o.a(which), o.b(which)),
                          product(which, o.a(which), o.b(which), chosen)));
  }
}

}  // namespace
}  // namespace attnres::products_test
