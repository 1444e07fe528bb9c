// Phase 1 of depth attention (kernel.h has the formulas): every source is read from memory once,
// for up to 8 sites. A block has a token at a time.
#pragma once

#include "attnres/ops/depth_attention/cuda_rows.h"

namespace attnres::gpu {

inline constexpr int kMostSites = 8;

template <class Storage>
struct PhaseOneForward {
  TokenRows<Storage> rows;
  int num_sites;
  const float* queries;  // [S, D]
  float eps;
  float* inverse_rms[kMostSources];  // each [T]; null: not wanted
  bool rms_known[kMostSources];      // read, else written
  Storage* outputs[kMostSites];
  float *max, *sum;         // [S, T]
  float *scores, *weights;  // [S, N, T]; null: not wanted
};

template <class Storage, int kVectorsOfThread>
struct PhaseOneForwardKernel {
  using Operation = PhaseOneForward<Storage>;
  static constexpr int kN = kNumbers<Storage>, kVectors = kVectorsOfThread;
  // Sites of a launch, whose sums a thread has in 64 registers; sources and sites whose dot
  // products are summed at once.
  static constexpr int kSites =
      kMostSites < 64 / (kVectors * kN) ? kMostSites : 64 / (kVectors * kN);
  static constexpr int kGroup = 8 / kVectors;
  static constexpr int kTurn = kSites < kWarp / kGroup ? kSites : kWarp / kGroup;
  static constexpr int kTurns = kSites / kTurn;

  static constexpr int kTogether = 1;

  static int threads(const Operation& op) { return threads_of_width<kN, kVectors>(op.rows.width); }
  static constexpr bool kBlockARun = false;
  static constexpr int kResidentBlocks = 1;
  static int64_t most_blocks(const Operation& op) { return op.rows.tokens; }
  static constexpr int turns(int sources) { return (sources + kGroup - 1) / kGroup * (kTurns + 1); }
  static int64_t shared_floats(const Operation& op) {
    return op.rows.shared_floats() +
           2 * BlockSums::floats(turns(op.rows.stage_rows), threads(op) / kWarp) +
           2 * kSites * op.rows.num_sources;
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
          N_(op.rows.num_sources),
          S_(op.num_sites),
          D_(op.rows.width),
          warp_(block.thread() / kWarp),
          warps_(block.threads() / kWarp),
          lane_(block.thread() % kWarp),
          turns_(turns(op.rows.stage_rows)),
          scores_(block.shared() + op.rows.shared_floats()),
          weights_(scores_ + kSites * N_),
          sums_(weights_ + kSites * N_),
          rows_(block, op.rows, block.index(), op.rows.tokens, block.count()) {}

    ATTNRES_DEVICE void run() {
      const auto nothing_else = [](int64_t, int) {};
      rows_.begin(nothing_else);
      for (token_ = block_.index(); token_ < op_.rows.tokens; token_ += block_.count()) {
        for (int group = 0; group < rows_.groups(); ++group) {
          rows_.next(nothing_else);
          score(rows_.sources_before(group), rows_.sources_in(group));
        }
        block_.sync();
        for (int s = warp_; s < S_; s += warps_) exponentiate(s);
        block_.sync();
        float sums[kSites][kVectors][kN] = {};
        for (int group = 0; group < rows_.groups(); ++group) {
          if (rows_.groups() > 1) rows_.next(nothing_else);
          add(rows_.sources_before(group), rows_.sources_in(group), sums);
        }
        write(sums);
      }
    }

   private:
    // s of sources [before, before + count), which are in this step.
    ATTNRES_DEVICE void score(int before, int count) {
      BlockSums sums(sums_ + parity_ * BlockSums::floats(turns_, warps_), turns_);
      parity_ ^= 1;
      for (int r = 0, turn = 0; r < count; r += kGroup, turn += kTurns + 1) {
        const int here = count - r < kGroup ? count - r : kGroup;
        for (int k = 0; k < kTurns; ++k) {
          if (k * kTurn < S_) sums.give(block_, turn + k, dots(r, here, k * kTurn));
        }
        if (wants_squares(before + r, here))
          sums.give(block_, turn + kTurns, squares(before, r, here));
      }
      block_.sync();
      for (int turn = warp_; turn < turns_; turn += warps_) {
        const int r = turn / (kTurns + 1) * kGroup, k = turn % (kTurns + 1);
        const int here = count - r < kGroup ? count - r : kGroup;
        if (here <= 0 || k == kTurns || k * kTurn >= S_) continue;
        float square = 0;
        if (wants_squares(before + r, here)) square = sums.take(block_, turn - k + kTurns);
        save_score(k, before + r, here, sums.take(block_, turn), square);
      }
    }

    ATTNRES_DEVICE bool wants_squares(int first, int count) const {
      for (int n = first; n < first + count; ++n) {
        if (!op_.rms_known[n]) return true;
      }
      return false;
    }

    // q . v of kTurn sites and kGroup sources, one a lane.
    ATTNRES_DEVICE float dots(int r, int here, int site) const {
      float x[kTurn * kGroup] = {};
      ATTNRES_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        const int c = rows_.channel(i);
        if (c >= D_) continue;
        float q[kTurn][kN];
        ATTNRES_UNROLL
        for (int k = 0; k < kTurn; ++k) {
          // A site that isn't there has the last one's numbers, which nobody takes.
          const int s = site + k < S_ ? site + k : S_ - 1;
          load_constant_floats(op_.queries + s * D_ + c, q[k]);
        }
        ATTNRES_UNROLL
        for (int n = 0; n < kGroup; ++n) {
          if (n >= here) continue;
          float v[kN];
          unpack<Storage>(*rows_.source(r + n, i), v);
          ATTNRES_UNROLL
          for (int j = 0; j < kN; ++j) {
            ATTNRES_UNROLL
            for (int k = 0; k < kTurn; ++k)
              x[k * kGroup + n] = fma(q[k][j], v[j], x[k * kGroup + n]);
          }
        }
      }
      return warp_sums(block_, x);
    }

    ATTNRES_DEVICE float squares(int before, int r, int here) const {
      float x[kGroup] = {};
      ATTNRES_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        if (rows_.channel(i) >= D_) continue;
        ATTNRES_UNROLL
        for (int n = 0; n < kGroup; ++n) {
          if (n >= here || op_.rms_known[before + r + n]) continue;
          float v[kN];
          unpack<Storage>(*rows_.source(r + n, i), v);
          ATTNRES_UNROLL
          for (int j = 0; j < kN; ++j) x[n] = fma(v[j], v[j], x[n]);
        }
      }
      return warp_sums(block_, x);
    }

    // A lane has the dot product of one site of turn k and one source.
    ATTNRES_DEVICE void save_score(int k, int first, int here, float dot, float square) {
      const int s = k * kTurn + lane_ / kGroup, n = first + lane_ % kGroup;
      if (lane_ >= kTurn * kGroup || s >= S_ || n >= first + here) return;
      float* known = op_.inverse_rms[n];
      const bool read = op_.rms_known[n];
      const float r = read ? known[token_] : inverse_rms(square, D_, op_.eps);
      if (s == 0 && !read && known != nullptr) known[token_] = r;
      scores_[s * N_ + n] = dot * r;
      if (op_.scores != nullptr) op_.scores[at(s, n)] = dot * r;
    }

    // Of one site, by one warp: m, ell and the weights.
    ATTNRES_DEVICE void exponentiate(int s) {
      const float* scores = scores_ + s * N_;
      float m = scores[lane_ < N_ ? lane_ : 0];
      for (int n = lane_ + kWarp; n < N_; n += kWarp) m = larger(m, scores[n]);
      for (int mask = kWarp / 2; mask > 0; mask /= 2) m = larger(m, block_.exchange(m, mask));
      float ell[1] = {0};
      for (int n = lane_; n < N_; n += kWarp) {
        const float weight = exp_of_negative(scores[n] - m);
        ell[0] += weight;
        weights_[n * kSites + s] = weight;
        if (op_.weights != nullptr) op_.weights[at(s, n)] = weight;
      }
      const float sum = warp_sums(block_, ell);
      if (lane_ != 0) return;
      op_.max[s * op_.rows.tokens + token_] = m;
      op_.sum[s * op_.rows.tokens + token_] = sum;
    }

    ATTNRES_DEVICE void add(int before, int count, float (&sums)[kSites][kVectors][kN]) const {
      for (int r = 0; r < count; ++r) {
        float weights[kSites];
        load_floats(weights_ + (before + r) * kSites, weights);
        ATTNRES_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          if (rows_.channel(i) >= D_) continue;
          float v[kN];
          unpack<Storage>(*rows_.source(r, i), v);
          ATTNRES_UNROLL
          for (int s = 0; s < kSites; ++s) {
            ATTNRES_UNROLL
            for (int j = 0; j < kN; ++j) sums[s][i][j] = fma(weights[s], v[j], sums[s][i][j]);
          }
        }
      }
    }

    ATTNRES_DEVICE void write(const float (&sums)[kSites][kVectors][kN]) const {
      ATTNRES_UNROLL
      for (int s = 0; s < kSites; ++s) {
        if (s >= S_) continue;
        ATTNRES_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          if (rows_.channel(i) >= D_) continue;
          store_row(op_.outputs[s] + token_ * D_ + rows_.channel(i), sums[s][i]);
        }
      }
    }

    ATTNRES_DEVICE int64_t at(int s, int n) const {
      return (static_cast<int64_t>(s) * N_ + n) * op_.rows.tokens + token_;
    }

    const Block& block_;
    const Operation& op_;
    const int N_, S_, D_, warp_, warps_, lane_;
    const int turns_;       // of a step
    float* const scores_;   // [S, N]
    float* const weights_;  // [N, kSites]
    float* const sums_;     // two of BlockSums
    RowFetcher<Storage, kN, kVectors, /*kShared=*/false, Block> rows_;
    int64_t token_ = 0;
    int parity_ = 0;
  };
};

}  // namespace attnres::gpu
