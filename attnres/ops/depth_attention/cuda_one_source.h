// Phase 2 where one recent source is left, with phase 1 and a norm around it: almost every site of
// a model. As cuda_phase_two.h and cuda_phase_two_backward.h, but the rows of the next token come
// to registers while this one's are used.
#pragma once

#include "attnres/ops/depth_attention/cuda_phase_two.h"
#include "attnres/ops/depth_attention/cuda_phase_two_backward.h"

namespace attnres::gpu {

template <class Storage, int kVectorsOfThread>
struct OneSourceForwardKernel {
  using Operation = PhaseTwoForward<Storage>;
  static constexpr int kN = kNumbers<Storage>, kVectors = kVectorsOfThread;

  static bool has(const Operation& op) {
    return op.num_scored() == 1 && op.has_earlier && op.gain != nullptr;
  }
  static int threads(const Operation& op) { return threads_of_width<kN, kVectors>(op.rows.width); }
  static constexpr bool kBlockARun = false;
  static constexpr int kResidentBlocks = 1;
  static int64_t most_blocks(const Operation& op) { return op.rows.tokens; }
  static int64_t shared_floats(const Operation& op) {
    return 2 * BlockSums::floats(1, threads(op) / kWarp);
  }

  template <class Block>
  ATTNRES_DEVICE static void run(const Block& block, const Operation& op) {
    Rows now, next;
    next.fetch(block, op, block.index());
    for (int64_t token = block.index(); token < op.rows.tokens; token += block.count()) {
      now = next;
      if (token + block.count() < op.rows.tokens) next.fetch(block, op, token + block.count());
      site(block, op, token, now);
    }
  }

 private:
  struct Rows {
    Packed<Storage, kN> v[kVectors], pending[kVectors], earlier[kVectors];
    float max, sum, inverse_rms;

    template <class Block>
    ATTNRES_DEVICE void fetch(const Block& block, const Operation& op, int64_t token) {
      const Storage* rows = op.formed ? op.rows.fixed[0] : op.rows.sources[0];
      ATTNRES_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        const int c = channel<kN>(block, i);
        if (c >= op.rows.width) continue;
        const int64_t at = token * op.rows.width + c;
        v[i] = load_constant<4>(rows + at);
        if (op.formed) pending[i] = load_constant<4>(op.rows.fixed[1] + at);
        earlier[i] = load_constant<4>(op.rows.fixed[op.formed ? 2 : 0] + at);
      }
      max = op.max[token];
      sum = op.sum[token];
      if (op.rms_known[0]) inverse_rms = op.inverse_rms[0][token];
    }
  };

  template <class Block>
  ATTNRES_DEVICE static void site(const Block& block, const Operation& op, int64_t token,
                                  Rows& rows) {
    const int D = op.rows.width, floats = BlockSums::floats(1, block.threads() / kWarp);
    BlockSums dots(block.shared(), 1), squares(block.shared() + floats, 1);
    dots.give(block, 0, products(block, op, token, rows));
    block.sync();
    float of_source[2];
    dots.take_all(block, of_source);
    const bool first = block.thread() == 0;
    float r = rows.inverse_rms;
    if (!op.rms_known[0]) {
      r = inverse_rms(of_source[1], D, op.eps);
      if (first && op.inverse_rms[0] != nullptr) op.inverse_rms[0][token] = r;
    }
    const float score = of_source[0] * r, m = larger(rows.max, score);
    const float exponential = exp_of_negative(score - m), scale = exp_of_negative(rows.max - m);
    const float over_ell = quotient(1.0f, fma(scale, rows.sum, exponential));
    const float weight = exponential * over_ell, earlier_weight = scale * over_ell;

    float h[kVectors][kN] = {}, square[1] = {0};
    ATTNRES_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      if (channel<kN>(block, i) >= D) continue;
      float v[kN];
      unpack<Storage>(rows.v[i], v);
      unpack<Storage>(rows.earlier[i], h[i]);
      ATTNRES_UNROLL
      for (int j = 0; j < kN; ++j) {
        h[i][j] = fma(weight, v[j], earlier_weight * h[i][j]);
        square[0] = fma(h[i][j], h[i][j], square[0]);
      }
    }
    squares.give(block, 0, warp_sums(block, square));
    block.sync();
    squares.take_all(block, square);
    const float rho = inverse_rms(square[0], D, op.norm_eps);
    ATTNRES_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int c = channel<kN>(block, i);
      if (c < D) write(op, token * D + c, c, rho, h[i]);
    }
    if (!first) return;
    if (op.scores != nullptr) op.scores[token] = score;
    if (op.weights != nullptr) op.weights[token] = weight;
    if (op.earlier_weight != nullptr) op.earlier_weight[token] = earlier_weight;
    if (op.rho != nullptr) op.rho[token] = rho;
  }

  // q . v and v . v, of the sum as it is rounded, where v is formed here.
  template <class Block>
  ATTNRES_DEVICE static float products(const Block& block, const Operation& op, int64_t token,
                                       Rows& rows) {
    float x[2] = {};
    ATTNRES_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int c = channel<kN>(block, i);
      if (c >= op.rows.width) continue;
      float v[kN], q[kN];
      unpack<Storage>(rows.v[i], v);
      load_constant_floats(op.query + c, q);
      if (op.formed) {
        float pending[kN];
        unpack<Storage>(rows.pending[i], pending);
        ATTNRES_UNROLL
        for (int j = 0; j < kN; ++j) v[j] += pending[j];
        rows.v[i] = pack<Storage>(v);
        store(op.formed_sum + token * op.rows.width + c, rows.v[i]);
        unpack<Storage>(rows.v[i], v);
      }
      ATTNRES_UNROLL
      for (int j = 0; j < kN; ++j) {
        x[0] = fma(q[j], v[j], x[0]);
        x[1] = fma(v[j], v[j], x[1]);
      }
    }
    return warp_sums(block, x);
  }

  ATTNRES_DEVICE static void write(const Operation& op, int64_t at, int c, float rho,
                                   float (&h)[kN]) {
    float gain[kN];
    load_constant_floats(op.gain + c, gain);
    ATTNRES_UNROLL
    for (int j = 0; j < kN; ++j) h[j] *= rho;
    if (op.normalized != nullptr) store_row(op.normalized + at, h);
    ATTNRES_UNROLL
    for (int j = 0; j < kN; ++j) h[j] *= gain[j];
    store_row(op.x + at, h);
  }
};

template <class Storage, int kVectorsOfThread>
struct OneSourceBackwardKernel {
  using Operation = PhaseTwoBackward<Storage>;
  static constexpr int kN = kNumbers<Storage>, kVectors = kVectorsOfThread;

  static bool has(const Operation& op) {
    return op.rows.num_sources == 1 && op.earlier_weight != nullptr && op.gain != nullptr &&
           op.has_kept && op.grad_weights == nullptr;
  }
  static int threads(const Operation& op) { return threads_of_width<kN, kVectors>(op.rows.width); }
  static constexpr bool kBlockARun = true;
  static constexpr int kResidentBlocks = 1;
  static int64_t most_blocks(const Operation& op) {
    return runs_of_tokens(op.rows.tokens, op.rows.width);
  }
  static int64_t shared_floats(const Operation& op) {
    return 2 * BlockSums::floats(1, threads(op) / kWarp);
  }

  template <class Block>
  ATTNRES_DEVICE static void run(const Block& block, const Operation& op) {
    const auto [first, last] = run_of_tokens(block, op.rows.tokens);
    const int D = op.rows.width;
    float dq[kVectors][kN] = {}, dgain[kVectors][kN] = {};
    Rows now, next;
    if (first < last) next.fetch(block, op, first);
    for (int64_t token = first; token < last; ++token) {
      now = next;
      if (token + 1 < last) next.fetch(block, op, token + 1);
      site(block, op, token, now, dq, dgain);
    }
    float* to = op.sums + static_cast<int64_t>(block.index()) * 2 * D;
    ATTNRES_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int c = channel<kN>(block, i);
      if (c >= D) continue;
      store_floats(to + c, dq[i]);
      store_floats(to + D + c, dgain[i]);
    }
  }

 private:
  struct Rows {
    Packed<Storage, kN> dx[kVectors], kept[kVectors], arriving[kVectors], v[kVectors];
    float weight, score, inverse_rms, earlier_weight, rho;

    template <class Block>
    ATTNRES_DEVICE void fetch(const Block& block, const Operation& op, int64_t token) {
      ATTNRES_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        const int c = channel<kN>(block, i);
        if (c >= op.rows.width) continue;
        const int64_t at = token * op.rows.width + c;
        dx[i] = load_constant<4>(op.rows.fixed[0] + at);
        kept[i] = load_constant<4>(op.rows.fixed[1] + at);
        v[i] = load_constant<4>(op.rows.sources[0] + at);
        if (op.has_arriving) arriving[i] = load_constant<4>(op.rows.fixed[2] + at);
      }
      weight = op.weights[token];
      score = op.scores[token];
      inverse_rms = op.inverse_rms[0][token];
      earlier_weight = op.earlier_weight[token];
      rho = op.rho[token];
    }
  };

  template <class Block>
  ATTNRES_DEVICE static void site(const Block& block, const Operation& op, int64_t token,
                                  const Rows& rows, float (&dq)[kVectors][kN],
                                  float (&dgain)[kVectors][kN]) {
    const int D = op.rows.width, floats = BlockSums::floats(1, block.threads() / kWarp);
    BlockSums sums(block.shared() + (token & 1) * floats, 1);
    sums.give(block, 0, products(block, op, rows, dgain));
    block.sync();
    float product[4];  // u . v, n . v, a = u . n
    sums.take_all(block, product);
    const float over_width = quotient(1.0f, static_cast<float>(D));
    const float a = product[2], along = a * over_width, rho = rows.rho, r = rows.inverse_rms;
    const float c = op.norm_eps * rho * rho * a;
    const float ds = rows.weight * (rho * fma(-along, product[1], product[0]) - c);
    const float along_query = ds * r, value = ds * rows.score * (r * r * over_width);
    ATTNRES_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int at = channel<kN>(block, i);
      if (at >= D) continue;
      float dh[kN], v[kN], q[kN], dv[kN] = {}, earlier[kN];
      gradient(op, rows, i, at, along, dh);
      unpack<Storage>(rows.v[i], v);
      load_constant_floats(op.query + at, q);
      if (op.has_arriving) unpack<Storage>(rows.arriving[i], dv);
      ATTNRES_UNROLL
      for (int j = 0; j < kN; ++j) {
        earlier[j] = rows.earlier_weight * dh[j];
        dv[j] = fma(-value, v[j], fma(along_query, q[j], fma(rows.weight, dh[j], dv[j])));
        dq[i][j] = fma(along_query, v[j], dq[i][j]);
      }
      store_row(op.grad_earlier + token * D + at, earlier);
      if (op.gradients[0].rows != nullptr) put_gradient(op.gradients[0], token * D + at, dv);
    }
    if (block.thread() != 0) return;
    op.grad_sum[token] = -rows.earlier_weight * c;
    if (op.grad_scores != nullptr) op.grad_scores[token] = ds;
  }

  // And the gain's gradient.
  template <class Block>
  ATTNRES_DEVICE static float products(const Block& block, const Operation& op, const Rows& rows,
                                       float (&dgain)[kVectors][kN]) {
    float x[4] = {};
    ATTNRES_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int c = channel<kN>(block, i);
      if (c >= op.rows.width) continue;
      float u[kN], gain[kN], n[kN], v[kN];
      unpack<Storage>(rows.dx[i], u);
      unpack_kept(op, rows, i, c, n);
      unpack<Storage>(rows.v[i], v);
      load_constant_floats(op.gain + c, gain);
      ATTNRES_UNROLL
      for (int j = 0; j < kN; ++j) {
        dgain[i][j] = fma(u[j], n[j], dgain[i][j]);
        u[j] *= gain[j];
        x[0] = fma(u[j], v[j], x[0]);
        x[1] = fma(n[j], v[j], x[1]);
        x[2] = fma(u[j], n[j], x[2]);
      }
    }
    return warp_sums(block, x);
  }

  // n = h rho
  ATTNRES_DEVICE static void unpack_kept(const Operation& op, const Rows& rows, int i, int at,
                                         float (&n)[kN]) {
    unpack<Storage>(rows.kept[i], n);
    if (op.kept_factor == nullptr) return;
    float factor[kN];
    load_constant_floats(op.kept_factor + at, factor);
    ATTNRES_UNROLL
    for (int j = 0; j < kN; ++j) n[j] *= factor[j];
  }

  // dh = rho (u - n a / D)
  ATTNRES_DEVICE static void gradient(const Operation& op, const Rows& rows, int i, int at,
                                      float along, float (&dh)[kN]) {
    float n[kN], gain[kN];
    unpack<Storage>(rows.dx[i], dh);
    unpack_kept(op, rows, i, at, n);
    load_constant_floats(op.gain + at, gain);
    ATTNRES_UNROLL
    for (int j = 0; j < kN; ++j) dh[j] = rows.rho * fma(-along, n[j], gain[j] * dh[j]);
  }
};

}  // namespace attnres::gpu
