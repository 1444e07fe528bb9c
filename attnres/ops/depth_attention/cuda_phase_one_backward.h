// The backward of phase 1 (kernel.h has the formulas): every source is read once, and its gradient
// read and written once, for up to 8 sites. A block has a run of tokens, one at a time.
#pragma once

#include "attnres/ops/depth_attention/cuda_phase_one.h"

namespace attnres::gpu {

template <class Storage>
struct PhaseOneBackward {
  TokenRows<Storage> rows;  // fixed: the gradients of the S sites' outputs
  const float* queries;     // [S, D]
  const float* inverse_rms[kMostSources];
  const float *scores, *weights;   // [S, N, T]
  const float* grad_sum;           // of ell, [S, T]; null: c is computed here
  const float* other_grad_scores;  // [S, T]; null: zero
  GradientRow<Storage> gradients[kMostSources];
  float* sums;  // [runs, S, D]: the queries' gradients

  constexpr int num_sites() const { return rows.num_fixed; }
};

template <class Storage, int kVectors>
struct PhaseOneBackwardKernel {
  using Operation = PhaseOneBackward<Storage>;
  using Forward = PhaseOneForwardKernel<Storage, kVectors>;
  static constexpr int kN = kNumbers<Storage>, kGroup = Forward::kGroup;
  // The queries' gradients have 64 registers too: half the forward's sites at once, and in all
  // where a thread has many vectors.
  static constexpr int kSites = kVectors < 4 ? Forward::kSites : Forward::kSites / 2;
  static constexpr int kTurn = Forward::kTurn / 2, kTurns = kSites / kTurn;

  static int threads(const Operation& op) { return threads_of_width<Storage>(op.rows.width); }
  static constexpr bool kBlockARun = true;
  static constexpr int kResidentBlocks = 1;
  static int64_t most_blocks(const Operation& op) { return runs_of_tokens(op.rows.tokens); }
  // What phase 2 and the forward left of a token: weights and scores [S, N], 1 / RMS [N], and [S].
  static constexpr int saved_floats(int N, int S) { return (2 * S + 1) * N + S; }
  static int64_t other_floats(int N, int S, int width) {
    const int turns = (N + kGroup - 1) / kGroup * kTurns;
    return 2 * BlockSums::floats(turns, threads_of_width<Storage>(width) / kWarp) + 4 * kSites * N +
           2 * saved_floats(N, S);
  }
  static int64_t shared_floats(const Operation& op) {
    return op.rows.shared_floats() +
           other_floats(op.rows.num_sources, op.num_sites(), op.rows.width);
  }

  template <class Block>
  ATTNRES_DEVICE static void run(const Block& block, const Operation& op) {
    const int64_t T = op.rows.tokens, first = T * block.index() / block.count(),
                  last = T * (block.index() + 1) / block.count();
    Pass<Block>(block, op, first, last).run(first, last);
  }

 private:
  template <class Block>
  class Pass {
   public:
    ATTNRES_DEVICE Pass(const Block& block, const Operation& op, int64_t first, int64_t last)
        : block_(block),
          op_(op),
          N_(op.rows.num_sources),
          S_(op.num_sites()),
          D_(op.rows.width),
          warp_(block.thread() / kWarp),
          warps_(block.threads() / kWarp),
          lane_(block.thread() % kWarp),
          turns_((op.rows.stage_rows + kGroup - 1) / kGroup * kTurns),
          parts_(block.shared() + op.rows.shared_floats()),
          values_(parts_ + 2 * kSites * N_),
          grad_weights_(values_ + kSites * N_),
          sums_(grad_weights_ + kSites * N_),
          saved_(sums_ + 2 * BlockSums::floats(turns_, warps_)),
          rows_(block, op.rows, first, last, 1) {}

    ATTNRES_DEVICE void run(int64_t first, int64_t last) {
      float dq[kSites][kVectors][kN] = {};
      const auto begin_saved = [this](int64_t token, int buffer) { fetch_saved(token, buffer); };
      rows_.begin(begin_saved);
      for (int64_t token = first; token < last; ++token) {
        for (int group = 0; group < rows_.groups(); ++group) {
          rows_.next(begin_saved);
          project(rows_.sources_before(group), rows_.sources_in(group));
        }
        block_.sync();
        for (int s = warp_; s < S_; s += warps_) weigh(s);
        block_.sync();
        for (int group = 0; group < rows_.groups(); ++group) {
          if (rows_.groups() > 1) rows_.next(begin_saved);
          add(token, rows_.sources_before(group), rows_.sources_in(group), dq);
        }
      }
      write(dq);
    }

   private:
    ATTNRES_DEVICE float* saved(int buffer) const { return saved_ + buffer * saved_floats(N_, S_); }

    ATTNRES_DEVICE void fetch_saved(int64_t token, int buffer) const {
      float* to = saved(buffer);
      const int64_t T = op_.rows.tokens;
      const int SN = S_ * N_;
      for (int i = block_.thread(); i < SN; i += block_.threads()) {
        block_.begin_copy(to + i, op_.weights + i * T + token);
        block_.begin_copy(to + SN + i, op_.scores + i * T + token);
      }
      for (int n = block_.thread(); n < N_; n += block_.threads()) {
        block_.begin_copy(to + 2 * SN + n, op_.inverse_rms[n] + token);
      }
      const float* of_sites = op_.grad_sum != nullptr ? op_.grad_sum : op_.other_grad_scores;
      for (int s = block_.thread(); s < S_ && of_sites != nullptr; s += block_.threads()) {
        block_.begin_copy(to + 2 * SN + N_ + s, of_sites + s * T + token);
      }
    }

    // do . v of sources [before, before + count), which are in this step.
    ATTNRES_DEVICE void project(int before, int count) {
      BlockSums sums(sums_ + parity_ * BlockSums::floats(turns_, warps_), turns_);
      parity_ ^= 1;
      for (int r = 0, turn = 0; r < count; r += kGroup, turn += kTurns) {
        const int here = count - r < kGroup ? count - r : kGroup;
        for (int k = 0; k < kTurns; ++k) {
          if (k * kTurn < S_) sums.give(block_, turn + k, dots(r, here, k * kTurn));
        }
      }
      block_.sync();
      for (int turn = warp_; turn < turns_; turn += warps_) {
        const int r = turn / kTurns * kGroup + lane_ % kGroup;
        const int s = turn % kTurns * kTurn + lane_ / kGroup;
        if (r - lane_ % kGroup >= count || turn % kTurns * kTurn >= S_) continue;
        const float dot = sums.take(block_, turn);
        if (lane_ < kTurn * kGroup && s < S_ && r < count) grad_weights_[s * N_ + before + r] = dot;
      }
    }

    ATTNRES_DEVICE float dots(int r, int here, int site) const {
      float x[kTurn * kGroup] = {};
      ATTNRES_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        if (rows_.channel(i) >= D_) continue;
        float d[kTurn][kN];
        ATTNRES_UNROLL
        for (int k = 0; k < kTurn; ++k) {
          // A site that isn't there has the last one's numbers, which nobody takes.
          unpack(*rows_.fixed(site + k < S_ ? site + k : S_ - 1, i), d[k]);
        }
        ATTNRES_UNROLL
        for (int n = 0; n < kGroup; ++n) {
          if (n >= here) continue;
          float v[kN];
          unpack(*rows_.source(r + n, i), v);
          ATTNRES_UNROLL
          for (int j = 0; j < kN; ++j) {
            ATTNRES_UNROLL
            for (int k = 0; k < kTurn; ++k)
              x[k * kGroup + n] = fma(d[k][j], v[j], x[k * kGroup + n]);
          }
        }
      }
      return warp_sums(block_, x);
    }

    // Of one site, by one warp: what the gradients are made of, from ds = w (dw - c).
    ATTNRES_DEVICE void weigh(int s) {
      const float *weights = saved(rows_.buffer()) + s * N_, *scores = weights + S_ * N_;
      const float *inverse_rms = saved(rows_.buffer()) + 2 * S_ * N_, *of_sites = inverse_rms + N_;
      float sum[1] = {0}, total[1] = {0};
      for (int n = lane_; n < N_; n += kWarp) {
        sum[0] = fma(weights[n], grad_weights_[s * N_ + n], sum[0]);
        total[0] += weights[n];
      }
      float along = warp_sums(block_, sum);
      const float all = warp_sums(block_, total);
      if (op_.other_grad_scores != nullptr && op_.grad_sum == nullptr) along += of_sites[s];
      const float c = op_.grad_sum != nullptr ? -of_sites[s] : quotient(along, all);
      const float over_width = quotient(1.0f, static_cast<float>(D_));
      for (int n = lane_; n < N_; n += kWarp) {
        const float r = inverse_rms[n], ds = weights[n] * (grad_weights_[s * N_ + n] - c);
        parts_[(n * kSites + s) * 2] = weights[n];
        parts_[(n * kSites + s) * 2 + 1] = ds * r;
        values_[n * kSites + s] = ds * scores[n] * (r * r * over_width);
      }
    }

    // The gradients of sources [before, before + count).
    ATTNRES_DEVICE void add(int64_t token, int before, int count,
                            float (&dq)[kSites][kVectors][kN]) const {
      for (int r = 0; r < count; ++r) {
        const int n = before + r;
        const float value = value_of(n);
        ATTNRES_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          if (rows_.channel(i) >= D_) continue;
          float v[kN], dv[kN];
          unpack(*rows_.source(r, i), v);
          ATTNRES_UNROLL
          for (int j = 0; j < kN; ++j) dv[j] = -value * v[j];
          ATTNRES_UNROLL
          for (int s = 0; s < kSites; ++s) {
            if (s < S_) add_site(s, i, parts_ + (n * kSites + s) * 2, v, dv, dq[s][i]);
          }
          if (op_.gradients[n].rows == nullptr) continue;
          put_gradient(op_.gradients[n], token * D_ + rows_.channel(i), dv);
        }
      }
    }

    ATTNRES_DEVICE float value_of(int n) const {
      float value = 0;
      for (int s = 0; s < S_; ++s) value += values_[n * kSites + s];
      return value;
    }

    // dv += w do + g q,  dq += g v
    ATTNRES_DEVICE void add_site(int s, int i, const float* parts, const float (&v)[kN],
                                 float (&dv)[kN], float (&dq)[kN]) const {
      const float weight = parts[0], along_query = parts[1];
      float d[kN], q[kN];
      unpack(*rows_.fixed(s, i), d);
      load_constant_floats(op_.queries + s * D_ + rows_.channel(i), q);
      ATTNRES_UNROLL
      for (int j = 0; j < kN; ++j) {
        dv[j] = fma(weight, d[j], fma(along_query, q[j], dv[j]));
        dq[j] = fma(along_query, v[j], dq[j]);
      }
    }

    ATTNRES_DEVICE void write(const float (&dq)[kSites][kVectors][kN]) const {
      ATTNRES_UNROLL
      for (int s = 0; s < kSites; ++s) {
        if (s >= S_) continue;
        ATTNRES_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          if (rows_.channel(i) >= D_) continue;
          const int64_t row = static_cast<int64_t>(block_.index()) * S_ + s;
          store_floats(op_.sums + row * D_ + rows_.channel(i), dq[s][i]);
        }
      }
    }

    const Block& block_;
    const Operation& op_;
    const int N_, S_, D_, warp_, warps_, lane_;
    const int turns_;            // of a step
    float* const parts_;         // [N, kSites, 2]: w and ds r
    float* const values_;        // [N, kSites]: ds s r^2 / D
    float* const grad_weights_;  // [S, N]: dw
    float* const sums_;          // two of BlockSums
    float* const saved_;         // two of saved_floats
    RowFetcher<Storage, kVectors, Block> rows_;
    int parity_ = 0;
  };
};

}  // namespace attnres::gpu
