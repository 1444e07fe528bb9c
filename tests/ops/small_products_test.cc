// Operands of small products, and the products, against plain loops.
#include "attnres/ops/small_products/small_products.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "attnres/ops/small_products/kernel.h"
#include "tests/ops/every_target.h"
#include "tests/tolerances.h"

namespace attnres::small_products_test {
namespace {

using kernel::BFloat16;

template <class Storage>
Storage number(int64_t i) {
  return static_cast<Storage>(i);
}
template <>
BFloat16 number(int64_t i) {
  return {static_cast<uint16_t>(i)};
}
float value(float x) {
  return x;
}
float value(BFloat16 x) {
  return x.bits;
}

// Rows of numbers from 1 on, and what stands between them.
template <class Storage>
struct Source {
  Source(int64_t rows, int64_t columns, int64_t gap) : numbers(rows * (columns + gap)) {
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = number<Storage>(i + 1);
    matrix = {numbers.data(), columns + gap, rows, columns};
  }
  float at(int64_t r, int64_t c) const { return value(numbers[r * matrix.stride + c]); }

  std::vector<Storage> numbers;
  kernel::MatrixRows<Storage> matrix;
};

template <class F>
void for_each_shape(const F& f) {
  for (const int64_t rows : {1, 2, 3, 8, 9, 33}) {
    for (const int64_t columns : {2, 4, 8, 10, 34}) f(rows, columns);
  }
}

template <class Storage>
void expect_transposed() {
  for_each_shape([](int64_t rows, int64_t columns) {
    const Source<Storage> from(rows, columns, 4);
    const int64_t stride = rows + 3;
    std::vector<Storage> to(columns * stride);
    kernel::transpose(from.matrix, to.data(), stride);
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = 0; r < rows; ++r) ASSERT_EQ(value(to[c * stride + r]), from.at(r, c));
      for (int64_t r = rows; r < stride; ++r) ASSERT_EQ(value(to[c * stride + r]), 0) << "left";
    }
  });
}

TEST(SmallProducts, TransposeOperands) {
  testing::on_every_target([] {
    expect_transposed<float>();
    expect_transposed<BFloat16>();
  });
}

TEST(SmallProducts, PairRows) {
  testing::on_every_target([] {
    for_each_shape([](int64_t rows, int64_t columns) {
      const Source<BFloat16> from(rows, columns, 2);
      std::vector<BFloat16> to((rows + 1) / 2 * columns * 2, {7});
      kernel::pair_rows(from.matrix, to.data());
      for (int64_t r = 0; r < (rows + 1) / 2 * 2; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          ASSERT_EQ(value(to[r / 2 * columns * 2 + 2 * c + r % 2]), r < rows ? from.at(r, c) : 0);
        }
      }
    });
  });
}

TEST(SmallProducts, TransposeInPairs) {
  testing::on_every_target([] {
    for_each_shape([](int64_t rows, int64_t columns) {
      const Source<BFloat16> from(rows, columns, 2);
      const int64_t to_columns = rows + 1;
      std::vector<BFloat16> to(columns * to_columns);
      kernel::transpose_in_pairs(from.matrix, to.data(), to_columns);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          ASSERT_EQ(value(to[c / 2 * to_columns * 2 + 2 * r + c % 2]), from.at(r, c));
        }
      }
    });
  });
}

// A and B with rows that lie apart, C inside of a larger matrix.
void expect_product(at::ScalarType dtype, int64_t m, int64_t n, int64_t k, bool add) {
  const at::Tensor a = at::randn({m, k + 6}).to(dtype), b = at::randn({k, n}).to(dtype);
  const at::Tensor before = at::randn({m, n + 5});
  const at::Tensor product = a.narrow(1, 0, k).to(at::kDouble).mm(b.to(at::kDouble));
  at::Tensor c = before.clone();
  const at::Tensor pairs = b.view({k / 2, 2, n}).transpose(1, 2).contiguous();
  with_small_products(1, [&](int64_t, int64_t) {
    if (dtype == at::kFloat) {
      multiply(m, n, k, a.const_data_ptr<float>(), k + 6, b.const_data_ptr<float>(), n,
               c.data_ptr<float>(), n + 5, add);
    } else {
      multiply(m, n, k, static_cast<const BFloat16*>(a.const_data_ptr()), k + 6,
               static_cast<const BFloat16*>(pairs.const_data_ptr()), n, c.data_ptr<float>(), n + 5,
               add);
    }
  });
  const at::Tensor expected = add ? product + before.narrow(1, 0, n) : product;
  EXPECT_TRUE(testing::close(c.narrow(1, 0, n), expected)) << m << " " << n << " " << k;
  EXPECT_TRUE(at::equal(c.narrow(1, n, 5), before.narrow(1, n, 5)));
}

TEST(SmallProducts, AreThoseOfFloat64) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    if (!has_small_products(dtype)) GTEST_SKIP() << "not on this processor";
    for (const bool add : {false, true}) {
      expect_product(dtype, 1, 1, 2, add);
      expect_product(dtype, 7, 33, 10, add);
      expect_product(dtype, 64, 256, 64, add);
      expect_product(dtype, 65, 100, 130, add);
    }
  }
}

// oneDNN's own products leave a processor's matrix unit set up for none.
TEST(SmallProducts, OfOneShapeBeforeAndAfterALargeOne) {
  if (!has_small_products(at::kBFloat16)) GTEST_SKIP() << "not on this processor";
  const at::Tensor x = at::randn({128, 256}).to(at::kBFloat16);
  expect_product(at::kBFloat16, 64, 64, 64, false);
  at::linear(x, x);
  expect_product(at::kBFloat16, 64, 64, 64, false);
}

}  // namespace
}  // namespace attnres::small_products_test
