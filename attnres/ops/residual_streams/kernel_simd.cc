#include <cstdint>

#include "attnres/ops/exported_kernel.h"
#include "attnres/ops/residual_streams/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/residual_streams/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

// `count` rows of `width` numbers that follow each other, and a weight for each.
template <class Storage>
struct WeightedRows {
  int64_t count, width;
  const Storage* rows;
  const Compute<Storage>* weights;
  int64_t weight_stride = 1;
};

// to = scale * start + sum_r weight_r row_r, without the start where it is null.
template <class Storage, class Start, class To>
HWY_INLINE void combine(const WeightedRows<Storage>& of, const Start* start, Compute<Storage> scale,
                        To* to) {
  const hn::ScalableTag<Compute<Storage>> d;
  const size_t lanes = hn::Lanes(d);
  for_each_vectors<4>(d, of.width, [&]<int U>(size_t k, auto part) HWY_ATTR {
    hn::Vec<decltype(d)> sum[U];
    for (int u = 0; u < U; ++u) {
      sum[u] = start == nullptr ? hn::Zero(d)
                                : hn::Mul(hn::Set(d, scale), load(d, start + k + u * lanes, part));
    }
    for (int64_t r = 0; r < of.count; ++r) {
      const auto weight = hn::Set(d, of.weights[r * of.weight_stride]);
      const Storage* row = of.rows + r * of.width + k;
      for (int u = 0; u < U; ++u) {
        sum[u] = hn::MulAdd(weight, load(d, row + u * lanes, part), sum[u]);
      }
    }
    for (int u = 0; u < U; ++u) store(d, sum[u], to + k + u * lanes, part);
  });
}

// to_r = x . row_r for R rows that follow each other.
template <int R, class Storage>
HWY_INLINE void dot_rows(const Storage* x, const Storage* rows, int64_t width,
                         Compute<Storage>* to) {
  const hn::ScalableTag<Compute<Storage>> d;
  hn::Vec<decltype(d)> sum[R];
  for (int r = 0; r < R; ++r) sum[r] = hn::Zero(d);
  for_each_vector(d, width, [&](size_t k, auto part) HWY_ATTR {
    const auto v = load(d, x + k, part);
    for (int r = 0; r < R; ++r) {
      sum[r] = hn::MulAdd(v, load(d, rows + r * width + k, part), sum[r]);
    }
  });
  for (int r = 0; r < R; ++r) to[r] = hn::GetLane(hn::SumOfLanes(d, sum[r]));
}

template <class Storage>
HWY_INLINE void dots(const Storage* x, const Storage* rows, int64_t count, int64_t width,
                     Compute<Storage>* to) {
  constexpr int kRows = 4;
  int64_t r = 0;
  for (; r + kRows <= count; r += kRows) dot_rows<kRows>(x, rows + r * width, width, to + r);
  for (; r < count; ++r) dot_rows<1>(x, rows + r * width, width, to + r);
}

template <class Storage>
void read_rows(const StreamsRead<Storage>& op, int64_t first, int64_t last) {
  const int64_t m = op.sizes.streams, D = op.sizes.width;
  const Storage* const nothing = nullptr;
  for (int64_t t = first; t < last; ++t) {
    combine(WeightedRows<Storage>{m, D, op.streams_TMD + t * m * D, op.read_TM + t * m}, nothing, 1,
            op.h_TD + t * D);
  }
}

template <class Storage>
void read_backward_rows(const StreamsReadBackward<Storage>& op, int64_t first, int64_t last) {
  using T = Compute<Storage>;
  const int64_t m = op.sizes.streams, D = op.sizes.width;
  for (int64_t t = first; t < last; ++t) {
    const Storage* grad_h = op.grad_h_TD + t * D;
    if (op.grad_read_TM != nullptr) {
      dots(grad_h, op.streams_TMD + t * m * D, m, D, op.grad_read_TM + t * m);
    }
    if (op.grad_streams_TMD == nullptr) continue;
    for (int64_t i = t * m; i < (t + 1) * m; ++i) {
      T* grad = op.grad_streams_TMD + i * D;
      combine(WeightedRows<Storage>{1, D, grad_h, op.read_TM + i}, op.accumulate ? grad : nullptr,
              1, grad);
    }
  }
}

template <class Storage>
void write_rows(const StreamsWrite<Storage>& op, int64_t first, int64_t last) {
  constexpr Compute<Storage> kOne = 1;
  const int64_t m = op.sizes.streams, D = op.sizes.width;
  for (int64_t t = first; t < last; ++t) {
    const Storage* streams = op.streams_TMD + t * m * D;
    for (int64_t j = t * m; j < (t + 1) * m; ++j) {
      const WeightedRows<Storage> mixed =
          op.mix_TMM != nullptr ? WeightedRows<Storage>{m, D, streams, op.mix_TMM + j * m}
                                : WeightedRows<Storage>{1, D, op.streams_TMD + j * D, &kOne};
      combine(mixed, op.y_TD + t * D, op.write_TM[j], op.written_TMD + j * D);
    }
  }
}

template <class Storage>
void write_backward_rows(const StreamsWriteBackward<Storage>& op, int64_t first, int64_t last) {
  using T = Compute<Storage>;
  constexpr T kOne = 1;
  const int64_t m = op.sizes.streams, D = op.sizes.width;
  const Storage* const nothing = nullptr;
  for (int64_t t = first; t < last; ++t) {
    const Storage *streams = op.streams_TMD + t * m * D, *y = op.y_TD + t * D,
                  *grads = op.grad_written_TMD + t * m * D;
    if (op.grad_y_TD != nullptr) {
      combine(WeightedRows<Storage>{m, D, grads, op.write_TM + t * m}, nothing, 1,
              op.grad_y_TD + t * D);
    }
    if (op.grad_write_TM != nullptr) dots(y, grads, m, D, op.grad_write_TM + t * m);
    for (int64_t j = 0; j < m; ++j) {
      if (op.grad_mix_TMM != nullptr) {
        dots(grads + j * D, streams, m, D, op.grad_mix_TMM + (t * m + j) * m);
      }
      if (op.grad_streams_TMD == nullptr) continue;
      const WeightedRows<Storage> mixed =
          op.mix_TMM != nullptr ? WeightedRows<Storage>{m, D, grads, op.mix_TMM + t * m * m + j, m}
                                : WeightedRows<Storage>{1, D, grads + j * D, &kOne};
      T* grad = op.grad_streams_TMD + (t * m + j) * D;
      combine(mixed, op.accumulate ? grad : nullptr, 1, grad);
    }
  }
}

ATTNRES_COMPILE(read_streams, StreamsRead, read_rows)
ATTNRES_COMPILE(read_streams_backward, StreamsReadBackward, read_backward_rows)
ATTNRES_COMPILE(write_streams, StreamsWrite, write_rows)
ATTNRES_COMPILE(write_streams_backward, StreamsWriteBackward, write_backward_rows)

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

ATTNRES_EXPORT(read_streams, StreamsRead)
ATTNRES_EXPORT(read_streams_backward, StreamsReadBackward)
ATTNRES_EXPORT(write_streams, StreamsWrite)
ATTNRES_EXPORT(write_streams_backward, StreamsWriteBackward)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
