// Phase 2 of depth attention at one site (kernel_phase_two.h has the formulas): one pass over the
// rows of a token. Without phase 1 and without a norm it is the whole of depth attention.
#pragma once

#include "attnres/ops/depth_attention/cuda_rows.h"

namespace attnres::gpu {

template <class Storage>
struct PhaseTwoForward {
  TokenRows<Storage>
      rows;  // fixed: partial and pending, if the last source is their sum; o of phase 1
  bool formed, has_earlier;
  const float *max, *sum;  // m and ell of phase 1, [T]
  Storage* formed_sum;
  const float* query;  // [D]
  float eps;
  const float* gain;  // [D]; null: there is no norm
  float norm_eps;
  float* inverse_rms[kMostSources + 1];  // each [T]; null: not wanted
  bool rms_known[kMostSources + 1];      // read, else written
  Storage* x;
  Storage* normalized;      // null: not wanted, and likewise the rest
  float *scores, *weights;  // [K, T]
  float *earlier_weight, *rho;

  constexpr int num_scored() const { return rows.num_sources + (formed ? 1 : 0); }
};

template <class Storage, int kVectorsOfThread>
struct PhaseTwoForwardKernel {
  using Operation = PhaseTwoForward<Storage>;
  static constexpr int kN = kNumbers<Storage>, kVectors = kVectorsOfThread;
  static constexpr int kGroup = 4;  // sources whose dot products and squares are summed at once

  static constexpr int kTogether = 1;

  static int threads(const Operation& op) { return threads_of_width<kN, kVectors>(op.rows.width); }
  static constexpr bool kBlockARun = false;
  static constexpr int kResidentBlocks = 2;
  static int64_t most_blocks(const Operation& op) { return op.rows.tokens; }
  static constexpr int turns(int scored) { return (scored + kGroup - 1) / kGroup; }
  static int64_t shared_floats(const Operation& op) {
    const int warps = threads(op) / kWarp, scored = op.num_scored();
    return op.rows.shared_floats() + 2 * BlockSums::floats(turns(scored) + 1, warps) +
           2 * warps * scored;
  }

  template <class Block>
  ATTNRES_DEVICE static void run(const Block& block, const Operation& op) {
    Pass<Block>(block, op).run();
  }

 private:
  template <class Block>
  class Pass {
   public:
    ATTNRES_DEVICE Pass(const Block& block, const Operation& op)
        : block_(block),
          op_(op),
          K_(op.num_scored()),
          D_(op.rows.width),
          lane_(block.thread() % kWarp),
          first_warp_(block.thread() < kWarp),
          turns_(turns(op.rows.stage_rows + (op.formed ? 1 : 0)) + 1),
          scores_(block.shared() + op.rows.shared_floats() + block.thread() / kWarp * 2 * K_),
          weights_(scores_ + K_),
          sums_(block.shared() + op.rows.shared_floats() + block.threads() / kWarp * 2 * K_),
          rows_(block, op.rows, block.index(), op.rows.tokens, block.count()) {}

    ATTNRES_DEVICE void run() {
      const auto nothing_else = [](int64_t, int) {};
      rows_.begin(nothing_else);
      for (token_ = block_.index(); token_ < op_.rows.tokens; token_ += block_.count()) {
        for (int group = 0; group < rows_.groups(); ++group) {
          rows_.next(nothing_else);
          if (group == 0 && op_.formed) form();
          score(group);
        }
        block_.sync_warp();
        merge();
        block_.sync_warp();
        float h[kVectors][kN] = {};
        if (op_.has_earlier) start(h);
        for (int group = 0; group < rows_.groups(); ++group) {
          if (rows_.groups() > 1) rows_.next(nothing_else);
          add(group, h);
        }
        op_.gain != nullptr ? write_normalized(h) : write(h);
      }
    }

   private:
    ATTNRES_DEVICE BlockSums next_sums() {
      const int floats = BlockSums::floats(turns_, block_.threads() / kWarp);
      parity_ ^= 1;
      return BlockSums(sums_ + parity_ * floats, turns_);
    }

    // The sum of the parts, as it is rounded, in the place of the first.
    ATTNRES_DEVICE void form() const {
      ATTNRES_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        const int c = rows_.channel(i);
        if (c >= D_) continue;
        float partial[kN], pending[kN];
        unpack<Storage>(*rows_.fixed(0, i), partial);
        unpack<Storage>(*rows_.fixed(1, i), pending);
        ATTNRES_UNROLL
        for (int j = 0; j < kN; ++j) partial[j] += pending[j];
        const Packed<Storage, kN> sum = pack<Storage>(partial);
        *rows_.fixed(0, i) = sum;
        store(op_.formed_sum + token_ * D_ + c, sum);
      }
    }

    // Sources that are scored and added with a group: the formed one with the last.
    ATTNRES_DEVICE int scored_in(int group) const {
      return rows_.sources_in(group) + (op_.formed && group == rows_.groups() - 1 ? 1 : 0);
    }
    ATTNRES_DEVICE const Packed<Storage, kN>& scored(int group, int r, int i) const {
      return r < rows_.sources_in(group) ? *rows_.source(r, i) : *rows_.fixed(0, i);
    }

    ATTNRES_DEVICE void score(int group) {
      BlockSums sums = next_sums();
      const int count = scored_in(group), before = rows_.sources_before(group);
      for (int r = 0; r < count; r += kGroup) sums.give(block_, r / kGroup, dots(group, r, count));
      block_.sync();
      for (int r = 0; r < count; r += kGroup) {
        const float sum = sums.take(block_, r / kGroup), square = block_.exchange(sum, 1);
        const int source = r + lane_ / 2;
        if (lane_ % 2 == 0 && lane_ < 2 * kGroup && source < count) {
          save_score(before + source, sum, square);
        }
      }
    }

    // q . v and v . v of each of kGroup sources.
    ATTNRES_DEVICE float dots(int group, int r, int count) const {
      float x[2 * kGroup] = {};
      ATTNRES_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        const int c = rows_.channel(i);
        if (c >= D_) continue;
        float q[kN];
        load_constant_floats(op_.query + c, q);
        ATTNRES_UNROLL
        for (int n = 0; n < kGroup; ++n) {
          if (r + n >= count) continue;
          float v[kN];
          unpack<Storage>(scored(group, r + n, i), v);
          ATTNRES_UNROLL
          for (int j = 0; j < kN; ++j) {
            x[2 * n] = fma(q[j], v[j], x[2 * n]);
            x[2 * n + 1] = fma(v[j], v[j], x[2 * n + 1]);
          }
        }
      }
      return warp_sums(block_, x);
    }

    ATTNRES_DEVICE void save_score(int k, float dot, float square) const {
      float* known = op_.inverse_rms[k];
      const bool read = op_.rms_known[k];
      const float r = read ? known[token_] : inverse_rms(square, D_, op_.eps);
      scores_[k] = dot * r;
      if (!first_warp_) return;
      if (!read && known != nullptr) known[token_] = r;
      if (op_.scores != nullptr) op_.scores[k * op_.rows.tokens + token_] = dot * r;
    }

    // The weights, by online softmax over phase 1 and the scored sources; each warp for itself.
    ATTNRES_DEVICE void merge() {
      float m = op_.has_earlier ? op_.max[token_] : scores_[0];
      for (int k = lane_; k < K_; k += kWarp) m = larger(m, scores_[k]);
      for (int mask = kWarp / 2; mask > 0; mask /= 2) m = larger(m, block_.exchange(m, mask));
      float sum[1] = {0};
      for (int k = lane_; k < K_; k += kWarp) {
        weights_[k] = exp_of_negative(scores_[k] - m);
        sum[0] += weights_[k];
      }
      float ell = warp_sums(block_, sum);
      if (op_.has_earlier) {
        const float scale = exp_of_negative(op_.max[token_] - m);
        ell = fma(scale, op_.sum[token_], ell);
        earlier_weight_ = quotient(scale, ell);
        if (block_.thread() == 0 && op_.earlier_weight != nullptr) {
          op_.earlier_weight[token_] = earlier_weight_;
        }
      }
      for (int k = lane_; k < K_; k += kWarp) {
        weights_[k] = quotient(weights_[k], ell);
        if (first_warp_ && op_.weights != nullptr) {
          op_.weights[k * op_.rows.tokens + token_] = weights_[k];
        }
      }
    }

    ATTNRES_DEVICE void start(float (&h)[kVectors][kN]) const {
      ATTNRES_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        if (rows_.channel(i) >= D_) continue;
        unpack<Storage>(*rows_.fixed(op_.formed ? 2 : 0, i), h[i]);
        ATTNRES_UNROLL
        for (int j = 0; j < kN; ++j) h[i][j] *= earlier_weight_;
      }
    }

    ATTNRES_DEVICE void add(int group, float (&h)[kVectors][kN]) const {
      const int count = scored_in(group);
      for (int r = 0; r < count; ++r) {
        const float weight = weights_[rows_.sources_before(group) + r];
        ATTNRES_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          if (rows_.channel(i) >= D_) continue;
          float v[kN];
          unpack<Storage>(scored(group, r, i), v);
          ATTNRES_UNROLL
          for (int j = 0; j < kN; ++j) h[i][j] = fma(weight, v[j], h[i][j]);
        }
      }
    }

    ATTNRES_DEVICE void write(const float (&h)[kVectors][kN]) const {
      ATTNRES_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        if (rows_.channel(i) < D_) store_row(op_.x + token_ * D_ + rows_.channel(i), h[i]);
      }
    }

    ATTNRES_DEVICE void write_normalized(const float (&h)[kVectors][kN]) {
      float square[1] = {0};
      ATTNRES_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        ATTNRES_UNROLL
        for (int j = 0; j < kN; ++j) square[0] = fma(h[i][j], h[i][j], square[0]);
      }
      BlockSums sums = next_sums();
      sums.give(block_, 0, warp_sums(block_, square));
      block_.sync();
      const float rho = inverse_rms(sums.take(block_, 0), D_, op_.norm_eps);
      if (block_.thread() == 0 && op_.rho != nullptr) op_.rho[token_] = rho;
      ATTNRES_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        const int c = rows_.channel(i);
        if (c >= D_) continue;
        float gain[kN], n[kN];
        load_constant_floats(op_.gain + c, gain);
        ATTNRES_UNROLL
        for (int j = 0; j < kN; ++j) n[j] = h[i][j] * rho;
        if (op_.normalized != nullptr) store_row(op_.normalized + token_ * D_ + c, n);
        ATTNRES_UNROLL
        for (int j = 0; j < kN; ++j) n[j] *= gain[j];
        store_row(op_.x + token_ * D_ + c, n);
      }
    }

    const Block& block_;
    const Operation& op_;
    const int K_, D_, lane_;
    const bool first_warp_;
    const int turns_;       // of a step, and one
    float* const scores_;   // [K], this warp's
    float* const weights_;  // [K], this warp's
    float* const sums_;     // two of BlockSums
    RowFetcher<Storage, kN, kVectors, /*kShared=*/false, Block> rows_;
    float earlier_weight_ = 0;
    int64_t token_ = 0;
    int parity_ = 0;
  };
};

}  // namespace attnres::gpu
