// The backward of phase 2, and of the whole of depth attention (kernel_phase_two.h and
// phase_two-inl.h have the formulas). A block has a run of tokens, one at a time.
#pragma once

#include "attnres/ops/depth_attention/cuda_rows.h"

namespace attnres::gpu {

template <class Storage>
struct PhaseTwoBackward {
  // Fixed: dx; if has_kept x or h rho; if has_arriving the last source's gradient from later sites.
  TokenRows<Storage> rows;
  bool has_kept, has_arriving;
  const float* query;        // [D]
  const float* gain;         // [D]; null: there is no norm
  const float* kept_factor;  // [D]: kept times this is h rho; null: kept is
  float norm_eps;
  const float* inverse_rms[kMostSources];  // each [T]
  const float *scores, *weights;           // [K, T]
  const float* grad_weights;               // [K, T], more of dw; null: zero
  const float* earlier_weight;             // [T]; null: there was no phase 1
  const float* rho;                        // [T], of a norm
  Storage* grad_earlier;                   // of o, if there was a phase 1, and likewise:
  float *grad_sum, *grad_scores;           // of ell, and the sum of the scores' gradients; [T]
  GradientRow<Storage> gradients[kMostSources];
  float* sums;  // [runs, D or 2 D]: the query's gradient and the gain's
};

template <class Storage, int kVectorsOfThread>
struct PhaseTwoBackwardKernel {
  using Operation = PhaseTwoBackward<Storage>;
  static constexpr int kN = kNumbers<Storage>, kVectors = kVectorsOfThread;
  static constexpr int kTogether = 1;
  // Sources whose dot products are summed at once, and a beside them.
  static constexpr int kGroup = 3;

  static int threads(const Operation& op) { return threads_of_width<kN, kVectors>(op.rows.width); }
  static constexpr bool kBlockARun = true;
  static constexpr int kResidentBlocks = 1;
  static int64_t most_blocks(const Operation& op) {
    return runs_of_tokens(op.rows.tokens, op.rows.width);
  }
  static constexpr int turns(int sources) {
    return sources == 0 ? 1 : (sources + kGroup - 1) / kGroup;
  }
  static int64_t shared_floats(const Operation& op) {
    const int warps = threads(op) / kWarp, sources = op.rows.num_sources;
    return op.rows.shared_floats() + 2 * BlockSums::floats(turns(sources), warps) +
           warps * (3 * sources + 1);
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
          K_(op.rows.num_sources),
          D_(op.rows.width),
          lane_(block.thread() % kWarp),
          turns_(turns(op.rows.stage_rows)),
          parts_(block.shared() + op.rows.shared_floats() + block.thread() / kWarp * (3 * K_ + 1)),
          sums_(block.shared() + op.rows.shared_floats() + block.threads() / kWarp * (3 * K_ + 1)),
          rows_(block, op.rows, first, last, 1) {}

    ATTNRES_DEVICE void run(int64_t first, int64_t last) {
      float dq[kVectors][kN] = {}, dgain[kVectors][kN] = {};
      const auto nothing_else = [](int64_t, int) {};
      rows_.begin(nothing_else);
      for (token_ = first; token_ < last; ++token_) {
        rho_ = op_.gain != nullptr ? op_.rho[token_] : 1.0f;
        for (int group = 0; group < rows_.groups(); ++group) {
          rows_.next(nothing_else);
          if (group == 0) load_norm(dgain);
          project(group);
        }
        block_.sync_warp();
        weigh();
        block_.sync_warp();
        for (int group = 0; group < rows_.groups(); ++group) {
          if (rows_.groups() > 1) rows_.next(nothing_else);
          add(group, dq);
        }
      }
      const int rows = op_.gain != nullptr ? 2 : 1;
      float* to = op_.sums + static_cast<int64_t>(block_.index()) * rows * D_;
      write(to, dq);
      if (op_.gain != nullptr) write(to + D_, dgain);
    }

   private:
    // u = gain dx and n = h rho; without a norm dx and h, and without h zero.
    ATTNRES_DEVICE void load_norm(float (&dgain)[kVectors][kN]) {
      ATTNRES_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        const int c = rows_.channel(i);
        if (c >= D_) continue;
        unpack<Storage>(*rows_.fixed(0, i), u_[i]);
        if (op_.has_kept) unpack<Storage>(*rows_.fixed(1, i), n_[i]);
        if (op_.kept_factor != nullptr) {
          float factor[kN];
          load_constant_floats(op_.kept_factor + c, factor);
          ATTNRES_UNROLL
          for (int j = 0; j < kN; ++j) n_[i][j] *= factor[j];
        }
        if (op_.gain == nullptr) continue;
        float gain[kN];
        load_constant_floats(op_.gain + c, gain);
        ATTNRES_UNROLL
        for (int j = 0; j < kN; ++j) {
          dgain[i][j] = fma(u_[i][j], n_[i][j], dgain[i][j]);
          u_[i][j] *= gain[j];
        }
      }
    }

    // u . v_k and n . v_k, and a = u . n.
    ATTNRES_DEVICE void project(int group) {
      const int floats = BlockSums::floats(turns_, block_.threads() / kWarp);
      BlockSums sums(sums_ + parity_ * floats, turns_);
      parity_ ^= 1;
      const int count = rows_.sources_in(group), before = rows_.sources_before(group);
      for (int r = 0, turn = 0; r < count || turn == 0; r += kGroup, ++turn) {
        sums.give(block_, turn, dots(r, count));
      }
      block_.sync();
      for (int r = 0, turn = 0; r < count || turn == 0; r += kGroup, ++turn) {
        const float sum = sums.take(block_, turn);
        if (lane_ < 2 * kGroup && r + lane_ / 2 < count) {
          parts_[(before + r + lane_ / 2) * 3 + lane_ % 2] = sum;
        }
        if (lane_ == 2 * kGroup) parts_[3 * K_] = sum;
      }
    }

    ATTNRES_DEVICE float dots(int r, int count) const {
      float x[8] = {};
      ATTNRES_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        if (rows_.channel(i) >= D_) continue;
        ATTNRES_UNROLL
        for (int j = 0; j < kN; ++j) x[2 * kGroup] = fma(u_[i][j], n_[i][j], x[2 * kGroup]);
        ATTNRES_UNROLL
        for (int k = 0; k < kGroup; ++k) {
          if (r + k >= count) continue;
          float v[kN];
          unpack<Storage>(*rows_.source(r + k, i), v);
          ATTNRES_UNROLL
          for (int j = 0; j < kN; ++j) {
            x[2 * k] = fma(u_[i][j], v[j], x[2 * k]);
            x[2 * k + 1] = fma(n_[i][j], v[j], x[2 * k + 1]);
          }
        }
      }
      return warp_sums(block_, x);
    }

    // Of a source: w, ds r and ds s r^2 / D, in the place of its dot products; each warp for
    // itself.
    ATTNRES_DEVICE void weigh() {
      const float a = parts_[3 * K_], over_width = quotient(1.0f, static_cast<float>(D_));
      along_ = op_.gain != nullptr ? a * over_width : 0.0f;
      float along[1] = {0};
      for (int k = lane_; k < K_; k += kWarp) {
        float dw = rho_ * fma(-along_, parts_[3 * k + 1], parts_[3 * k]);
        if (op_.grad_weights != nullptr) dw += op_.grad_weights[at(k)];
        parts_[3 * k] = dw;
        along[0] = fma(op_.weights[at(k)], dw, along[0]);
      }
      float c = warp_sums(block_, along);
      if (op_.earlier_weight != nullptr)
        c = op_.gain != nullptr ? op_.norm_eps * rho_ * rho_ * a : a;
      float scores[1] = {0};
      for (int k = lane_; k < K_; k += kWarp) {
        const float w = op_.weights[at(k)], r = op_.inverse_rms[k][token_];
        const float ds = w * (parts_[3 * k] - c);
        scores[0] += ds;
        parts_[3 * k] = w;
        parts_[3 * k + 1] = ds * r;
        parts_[3 * k + 2] = ds * op_.scores[at(k)] * (r * r * over_width);
      }
      const float grad_scores = warp_sums(block_, scores);
      if (op_.earlier_weight == nullptr) return;
      earlier_weight_ = op_.earlier_weight[token_];
      if (block_.thread() != 0) return;
      op_.grad_sum[token_] = -earlier_weight_ * c;
      if (op_.grad_scores != nullptr) op_.grad_scores[token_] = grad_scores;
    }

    // Gradients from dh = rho (u - n a / D).
    ATTNRES_DEVICE void add(int group, float (&dq)[kVectors][kN]) const {
      const int count = rows_.sources_in(group), before = rows_.sources_before(group);
      ATTNRES_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        const int c = rows_.channel(i);
        if (c >= D_) continue;
        float dh[kN], earlier[kN];
        ATTNRES_UNROLL
        for (int j = 0; j < kN; ++j) {
          dh[j] = rho_ * fma(-along_, n_[i][j], u_[i][j]);
          earlier[j] = earlier_weight_ * dh[j];
        }
        if (group == 0 && op_.earlier_weight != nullptr) {
          store_row(op_.grad_earlier + token_ * D_ + c, earlier);
        }
        for (int r = 0; r < count; ++r) add_source(before + r, r, i, dh, dq[i]);
      }
    }

    // dv = w dh + g q - value v,  dq += g v
    ATTNRES_DEVICE void add_source(int k, int r, int i, const float (&dh)[kN],
                                   float (&dq)[kN]) const {
      const int c = rows_.channel(i);
      const float weight = parts_[3 * k], along_query = parts_[3 * k + 1],
                  value = parts_[3 * k + 2];
      float v[kN], q[kN], dv[kN] = {};
      unpack<Storage>(*rows_.source(r, i), v);
      load_constant_floats(op_.query + c, q);
      if (op_.has_arriving && k == K_ - 1)
        unpack<Storage>(*rows_.fixed(op_.has_kept ? 2 : 1, i), dv);
      ATTNRES_UNROLL
      for (int j = 0; j < kN; ++j) {
        dv[j] = fma(-value, v[j], fma(along_query, q[j], fma(weight, dh[j], dv[j])));
        dq[j] = fma(along_query, v[j], dq[j]);
      }
      if (op_.gradients[k].rows != nullptr) put_gradient(op_.gradients[k], token_ * D_ + c, dv);
    }

    ATTNRES_DEVICE void write(float* to, const float (&sums)[kVectors][kN]) const {
      ATTNRES_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        if (rows_.channel(i) < D_) store_floats(to + rows_.channel(i), sums[i]);
      }
    }

    ATTNRES_DEVICE int64_t at(int k) const { return k * op_.rows.tokens + token_; }

    const Block& block_;
    const Operation& op_;
    const int K_, D_, lane_;
    const int turns_;     // of a step
    float* const parts_;  // [K, 3] and a, this warp's
    float* const sums_;   // two of BlockSums
    RowFetcher<Storage, kN, kVectors, /*kShared=*/false, Block> rows_;
    float u_[kVectors][kN] = {}, n_[kVectors][kN] = {};
    float rho_ = 1, along_ = 0, earlier_weight_ = 0;
    int64_t token_ = 0;
    int parity_ = 0;
  };
};

}  // namespace attnres::gpu
