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
  bool all_in_sums;  // all are wanted, and added to what is there in float32
  float* sums;       // [runs, S, D]: the queries' gradients

  constexpr int num_sites() const { return rows.num_fixed; }
};

template <class Storage, int kVectorsOfThread>
struct PhaseOneBackwardKernel {
  using Operation = PhaseOneBackward<Storage>;
  // A thread has few channels, so that it can keep the queries' gradients of all sites, and of
  // narrow rows the queries too, in registers.
  static constexpr int kN = 4, kVectors = kVectorsOfThread;
  static constexpr int kSites = kVectors < 4 ? kMostSites : kMostSites / 2;
  // Sources and sites whose dot products a warp computes at once, and sources whose gradients a
  // thread does.
  static constexpr int kTile = 2, kTogether = kVectors == 1 ? 4 : 2;

  static int threads(const Operation& op) { return threads_of_width<kN, kVectors>(op.rows.width); }
  static constexpr bool kBlockARun = true;
  static constexpr int kResidentBlocks = 1;
  static int64_t most_blocks(const Operation& op) {
    return runs_of_tokens(op.rows.tokens, op.rows.width);
  }
  // Places of a site's sources: those of a step begin at a multiple of kTogether.
  static constexpr int places_of_step(const TokenRows<Storage>& rows) {
    return (rows.stage_rows + kTogether - 1) / kTogether * kTogether;
  }
  static constexpr int places(const TokenRows<Storage>& rows) {
    return rows.groups() * places_of_step(rows);
  }
  // What phase 2 and the forward left of a token: weights and scores [S, N], 1 / RMS [N], and [S].
  static constexpr int saved_floats(int N, int S) { return (2 * S + 1) * N + S; }
  static int64_t shared_floats(const Operation& op) {
    return op.rows.shared_floats() + 4 * kSites * places(op.rows) +
           2 * saved_floats(op.rows.num_sources, op.num_sites());
  }

  template <class Block>
  ATTNRES_DEVICE static void run(const Block& block, const Operation& op) {
    const auto [first, last] = run_of_tokens(block, op.rows.tokens);
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
          places_(places(op.rows)),
          places_of_step_(places_of_step(op.rows)),
          S_(op.num_sites()),
          D_(op.rows.width),
          warp_(block.thread() / kWarp),
          warps_(block.threads() / kWarp),
          lane_(block.thread() % kWarp),
          weights_(block.shared() + op.rows.shared_floats()),
          along_query_(weights_ + kSites * places_),
          values_(along_query_ + kSites * places_),
          grad_weights_(values_ + kSites * places_),
          saved_(grad_weights_ + kSites * places_),
          rows_(block, op.rows, first, last, 1) {}

    ATTNRES_DEVICE void run(int64_t first, int64_t last) {
      float dq[kSites][kVectors][kN] = {};
      for (int i = block_.thread(); i < 3 * kSites * places_; i += block_.threads())
        weights_[i] = 0;
      if constexpr (kKeepsQueries) {
        ATTNRES_UNROLL
        for (int s = 0; s < kSites; ++s) load_query(s, 0, queries_[s]);
      }
      const auto begin_saved = [this](int64_t token, int buffer) { fetch_saved(token, buffer); };
      rows_.begin(begin_saved);
      for (int64_t token = first; token < last; ++token) {
        for (int group = 0; group < rows_.groups(); ++group) {
          rows_.next(begin_saved);
          project(group * places_of_step_, rows_.sources_in(group));
        }
        block_.sync();
        for (int s = warp_; s < S_; s += warps_) weigh(s);
        block_.sync();
        for (int group = 0; group < rows_.groups(); ++group) {
          if (rows_.groups() > 1) rows_.next(begin_saved);
          add(token, group, dq);
        }
      }
      write(dq);
    }

   private:
    static constexpr bool kKeepsQueries = kVectors == 1;

    ATTNRES_DEVICE float* saved(int buffer) const { return saved_ + buffer * saved_floats(N_, S_); }

    // A site that isn't there has the last one's numbers, whose weights are zero.
    ATTNRES_DEVICE int site(int s) const { return s < S_ ? s : S_ - 1; }

    ATTNRES_DEVICE void load_query(int s, int i, float (&to)[kN]) const {
      const int c = rows_.channel(i);
      if (c < D_) load_constant_floats(op_.queries + site(s) * D_ + c, to);
    }

    // And the sources' gradients, which are added to, on their way to the GPU's own cache.
    ATTNRES_DEVICE void fetch_saved(int64_t token, int buffer) const {
      for (int n = 0; op_.all_in_sums && n < N_; ++n) {
        ATTNRES_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          const int c = rows_.channel(i);
          if (c < D_) {
            block_.prefetch(static_cast<const float*>(op_.gradients[n].rows) + token * D_ + c);
          }
        }
      }
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

    // do . v of a step's sources, whose places are from `place` on: a warp has some sites and
    // sources, and all channels.
    ATTNRES_DEVICE void project(int place, int count) {
      constexpr int kTiles = kSites / kTile;
      const int tiles = (count + kTile - 1) / kTile * kTiles;
      for (int tile = warp_; tile < tiles; tile += warps_) {
        const int first_site = tile % kTiles * kTile, first = tile / kTiles * kTile;
        if (first_site >= S_) continue;
        const float dot = dots(first_site, first, count);
        const int s = first_site + lane_ / kTile, r = first + lane_ % kTile;
        if (lane_ < kTile * kTile && s < S_ && r < count) {
          grad_weights_[s * places_ + place + r] = dot;
        }
      }
    }

    // One of them a lane. What isn't there has the last one's numbers, which nobody takes.
    ATTNRES_DEVICE float dots(int first_site, int first, int count) const {
      constexpr int kWide = kN;
      const Storage *d_rows[kTile], *v_rows[kTile];
      ATTNRES_UNROLL
      for (int k = 0; k < kTile; ++k) {
        d_rows[k] = rows_.fixed_row(site(first_site + k));
        v_rows[k] = rows_.source_row(first + k < count ? first + k : count - 1);
      }
      float x[kTile * kTile] = {};
      for (int c = lane_ * kWide; c < D_; c += kWarp * kWide) {
        float d[kTile][kWide], v[kTile][kWide];
        ATTNRES_UNROLL
        for (int k = 0; k < kTile; ++k) {
          load_row(d_rows[k] + c, d[k]);
          load_row(v_rows[k] + c, v[k]);
        }
        ATTNRES_UNROLL
        for (int j = 0; j < kWide; ++j) {
          ATTNRES_UNROLL
          for (int k = 0; k < kTile * kTile; ++k) {
            x[k] = fma(d[k / kTile][j], v[k % kTile][j], x[k]);
          }
        }
      }
      return warp_sums(block_, x);
    }

    ATTNRES_DEVICE int place_of(int n) const {
      const int step = n / op_.rows.stage_rows;
      return step * places_of_step_ + n - step * op_.rows.stage_rows;
    }

    // Of one site, by one warp: what the gradients are made of, from ds = w (dw - c).
    ATTNRES_DEVICE void weigh(int s) {
      const float *weights = saved(rows_.buffer()) + s * N_, *scores = weights + S_ * N_;
      const float *inverse_rms = saved(rows_.buffer()) + 2 * S_ * N_, *of_sites = inverse_rms + N_;
      float sum[1] = {0}, total[1] = {0};
      for (int n = lane_; n < N_; n += kWarp) {
        sum[0] = fma(weights[n], grad_weights_[s * places_ + place_of(n)], sum[0]);
        total[0] += weights[n];
      }
      float along = warp_sums(block_, sum);
      const float all = warp_sums(block_, total);
      if (op_.other_grad_scores != nullptr && op_.grad_sum == nullptr) along += of_sites[s];
      const float c = op_.grad_sum != nullptr ? -of_sites[s] : quotient(along, all);
      const float over_width = quotient(1.0f, static_cast<float>(D_));
      for (int n = lane_; n < N_; n += kWarp) {
        const int at = s * places_ + place_of(n);
        const float r = inverse_rms[n], ds = weights[n] * (grad_weights_[at] - c);
        weights_[at] = weights[n];
        along_query_[at] = ds * r;
        values_[at] = ds * scores[n] * (r * r * over_width);
      }
    }

    // The gradients of a step's sources.
    ATTNRES_DEVICE void add(int64_t token, int group, float (&dq)[kSites][kVectors][kN]) const {
      const int count = rows_.sources_in(group);
      for (int r = 0; r < count; r += kTogether) {
        const int here = count - r < kTogether ? count - r : kTogether;
        ATTNRES_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          if (rows_.channel(i) >= D_) continue;
          const int n = rows_.sources_before(group) + r, place = group * places_of_step_ + r;
          if (here == kTogether && op_.all_in_sums) {
            add_sources</*kUsual=*/true>(token, n, place, r, here, i, dq);
          } else {
            add_sources</*kUsual=*/false>(token, n, place, r, here, i, dq);
          }
        }
      }
    }

    // dv = w do + g q - value v,  dq += g v,  of `here` sources from n on. Usually all are there,
    // and all gradients added to float32.
    template <bool kUsual>
    ATTNRES_DEVICE void add_sources(int64_t token, int n, int place, int r, int here, int i,
                                    float (&dq)[kSites][kVectors][kN]) const {
      const int64_t at = token * D_ + rows_.channel(i);
      float v[kTogether][kN] = {}, dv[kTogether][kN] = {};
      ATTNRES_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        if (!kUsual && k >= here) continue;
        if constexpr (kUsual) {
          load_floats(static_cast<const float*>(op_.gradients[n + k].rows) + at, dv[k]);
        } else {
          load_gradient(op_.gradients[n + k], at, dv[k]);
        }
      }
      float value[kTogether] = {};
      ATTNRES_UNROLL
      for (int s = 0; s < kSites; ++s) {
        ATTNRES_UNROLL
        for (int k = 0; k < kTogether; ++k) value[k] += values_[s * places_ + place + k];
      }
      ATTNRES_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        if (kUsual || k < here) unpack<Storage>(*rows_.source(r + k, i), v[k]);
        ATTNRES_UNROLL
        for (int j = 0; j < kN; ++j) dv[k][j] = fma(-value[k], v[k][j], dv[k][j]);
      }
      ATTNRES_UNROLL
      for (int s = 0; s < kSites; ++s) {
        const float *weight = weights_ + s * places_ + place,
                    *along_query = along_query_ + s * places_ + place;
        float d[kN], q[kN];
        unpack<Storage>(*rows_.fixed(site(s), i), d);
        if constexpr (!kKeepsQueries) load_query(s, i, q);
        ATTNRES_UNROLL
        for (int j = 0; j < kN; ++j) {
          if constexpr (kKeepsQueries) q[j] = queries_[s][j];
          ATTNRES_UNROLL
          for (int k = 0; k < kTogether; ++k) {
            dv[k][j] = fma(weight[k], d[j], fma(along_query[k], q[j], dv[k][j]));
            dq[s][i][j] = fma(along_query[k], v[k][j], dq[s][i][j]);
          }
        }
      }
      ATTNRES_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        if (!kUsual && k >= here) continue;
        if constexpr (kUsual) {
          store_floats(static_cast<float*>(op_.gradients[n + k].rows) + at, dv[k]);
        } else {
          store_gradient(op_.gradients[n + k], at, dv[k]);
        }
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
    const int N_, places_, places_of_step_, S_, D_, warp_, warps_, lane_;
    float* const weights_;       // [kSites, places]: w, and likewise
    float* const along_query_;   // ds r
    float* const values_;        // ds s r^2 / D
    float* const grad_weights_;  // dw
    float* const saved_;         // two of saved_floats
    RowFetcher<Storage, kN, kVectors, /*kShared=*/true, Block> rows_;
    float queries_[kKeepsQueries ? kSites : 1][kN] = {};
  };
};

}  // namespace attnres::gpu
