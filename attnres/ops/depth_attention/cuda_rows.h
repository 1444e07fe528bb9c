// Rows of tokens on their way to a block's shared memory: those of the next step are fetched while
// this step's are used. A thread copies what it alone will read, so that nobody waits for others;
// or all of a block's threads read what any has copied, and wait for each other at every step.
//
// A token has fixed rows, which are there for all of it, and sources. If all sources fit, a token
// is one step; if not, they come in groups twice: first to be scored, then to be summed.
#pragma once

#include "attnres/ops/cuda_code.h"

namespace attnres::gpu {

inline constexpr int kMostSources = 256, kMostFixed = 8;

// Where they lie, [T, D] each, and how they are fetched, which changes no bit of a result.
template <class Storage>
struct TokenRows {
  int64_t tokens;
  int width, num_fixed, num_sources;
  int row_floats;  // of a row in shared memory
  int stage_rows;  // sources of a step
  int buffers;     // 2, or 1: nothing is fetched ahead
  const Storage* fixed[kMostFixed];
  const Storage* sources[kMostSources];

  // Null: none.
  void add_fixed(const Storage* row) {
    if (row != nullptr) fixed[num_fixed++] = row;
  }
  constexpr int groups() const {
    return num_sources == 0 ? 1 : (num_sources + stage_rows - 1) / stage_rows;
  }
  // Of shared memory, in floats.
  constexpr int64_t shared_floats() const {
    return int64_t{buffers} * (num_fixed + stage_rows) * row_floats;
  }
};

// Chooses how an operation's rows come, so that the kernel fits into this many bytes; false:
// nothing does. Sources come by as many as fit, or a multiple of Kernel::kTogether.
template <class Kernel>
bool fit(typename Kernel::Operation& op, int64_t shared_bytes) {
  auto& rows = op.rows;
  rows.row_floats = Kernel::threads(op) * Kernel::kVectors * Kernel::kN *
                    static_cast<int>(sizeof(*rows.fixed[0])) / 4;
  const auto fits = [&] { return 4 * Kernel::shared_floats(op) <= shared_bytes; };
  for (rows.buffers = 2; rows.buffers > 0; --rows.buffers) {
    rows.stage_rows = rows.num_sources;
    while (rows.stage_rows > 1 &&
           (!fits() || (rows.groups() > 1 && rows.stage_rows > Kernel::kTogether &&
                        rows.stage_rows % Kernel::kTogether != 0))) {
      --rows.stage_rows;
    }
    if (fits()) return true;
  }
  return false;
}

// Tokens first, first + stride .. before last. begin_others(token, buffer) begins copies of what
// else a token needs; it is there, for all threads, after the sync that follows next().
template <class Storage, int kN, int kVectors, bool kShared, class Block>
class RowFetcher {
 public:
  using Vector = Packed<Storage, kN>;

  ATTNRES_DEVICE RowFetcher(const Block& block, const TokenRows<Storage>& rows, int64_t first,
                            int64_t last, int64_t stride)
      : block_(block),
        rows_(rows),
        threads_(block.threads()),
        thread_(block.thread()),
        groups_(rows.groups()),
        steps_(groups_ == 1 ? 1 : 2 * groups_),
        ahead_token_(first),
        last_(last),
        stride_(stride) {}

  // The first step's.
  template <class BeginOthers>
  ATTNRES_DEVICE void begin(const BeginOthers& begin_others) {
    if (rows_.buffers > 1) fetch(begin_others);
  }

  // Waits for the rows of the next step, and begins to fetch those of the one after it. Where rows
  // are shared, every thread of the block has to come here, and those of the last step are gone.
  template <class BeginOthers>
  ATTNRES_DEVICE void next(const BeginOthers& begin_others) {
    const bool ahead = rows_.buffers > 1;
    if constexpr (kShared) {
      wait_for_all();
      fetch(begin_others);
      if (!ahead) wait_for_all();
    } else {
      fetch(begin_others);
      ahead ? block_.template wait_for_copies<1>() : block_.template wait_for_copies<0>();
    }
    stage_ = ahead ? stage_ ^ 1 : 0;
    if (step_ == 0) token_buffer_ = ahead ? token_buffer_ ^ 1 : 0;
    if (++step_ == steps_) step_ = 0;
  }

  ATTNRES_DEVICE int groups() const { return groups_; }
  ATTNRES_DEVICE int sources_before(int group) const { return group * rows_.stage_rows; }
  ATTNRES_DEVICE int sources_in(int group) const {
    const int left = rows_.num_sources - sources_before(group);
    return left < rows_.stage_rows ? left : rows_.stage_rows;
  }
  ATTNRES_DEVICE int buffer() const { return token_buffer_; }

  // The first channel of a thread's i-th vector; those from the width on are nobody's.
  ATTNRES_DEVICE int channel(int i) const { return (thread_ + i * threads_) * kN; }

  // A thread's i-th vector, in shared memory, of a fixed row and of the r-th source of this step.
  ATTNRES_DEVICE Vector* fixed(int row, int i) const {
    return memory() + ((token_buffer_ * rows_.num_fixed + row) * kVectors + i) * threads_ + thread_;
  }
  ATTNRES_DEVICE Vector* source(int r, int i) const { return source_in(stage_, r, i); }

  // Where rows are shared: all of a row, its channels one after another.
  ATTNRES_DEVICE const Storage* fixed_row(int row) const {
    return reinterpret_cast<const Storage*>(memory() + (token_buffer_ * rows_.num_fixed + row) *
                                                           kVectors * threads_);
  }
  ATTNRES_DEVICE const Storage* source_row(int r) const {
    return reinterpret_cast<const Storage*>(source_in(stage_, r, 0) - thread_);
  }

 private:
  // Threads copy 16 bytes: as many rows at once as that is of their vectors.
  static constexpr int kRowsAtOnce = kShared ? 16 / static_cast<int>(sizeof(Vector)) : 1;

  ATTNRES_DEVICE void wait_for_all() const {
    block_.template wait_for_copies<0>();
    block_.sync();
  }

  ATTNRES_DEVICE Vector* memory() const { return reinterpret_cast<Vector*>(block_.shared()); }
  ATTNRES_DEVICE Vector* source_in(int stage, int r, int i) const {
    const int rows = rows_.buffers * rows_.num_fixed + stage * rows_.stage_rows + r;
    return memory() + (rows * kVectors + i) * threads_ + thread_;
  }

  // Of one more step, if there is one.
  template <class BeginOthers>
  ATTNRES_DEVICE void fetch(const BeginOthers& begin_others) {
    if (ahead_token_ < last_) {
      if (ahead_step_ == 0) {
        for (int f = first_row(); f < rows_.num_fixed; f += kRowsAtOnce) {
          const int row = ahead_buffer_ * rows_.num_fixed + f;
          fetch_row(rows_.fixed[f], memory() + row * kVectors * threads_);
        }
        begin_others(ahead_token_, ahead_buffer_);
      }
      const int group = ahead_step_ < groups_ ? ahead_step_ : ahead_step_ - groups_;
      const int before = sources_before(group), count = sources_in(group);
      for (int r = first_row(); r < count; r += kRowsAtOnce) {
        fetch_row(rows_.sources[before + r], source_in(ahead_stage_, r, 0) - thread_);
      }
      advance();
    }
    block_.end_copies();
  }

  ATTNRES_DEVICE int first_row() const { return thread_ / (threads_ / kRowsAtOnce); }

  ATTNRES_DEVICE void fetch_row(const Storage* row, Vector* to) {
    using Piece = Packed<Storage, kN * kRowsAtOnce>;
    const int threads = threads_ / kRowsAtOnce, thread = thread_ % threads;
    ATTNRES_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int piece = thread + i * threads, c = piece * kN * kRowsAtOnce;
      if (c >= rows_.width) continue;
      block_.begin_copy(reinterpret_cast<Piece*>(to) + piece, row + ahead_token_ * rows_.width + c);
    }
  }

  ATTNRES_DEVICE void advance() {
    if (rows_.buffers > 1) ahead_stage_ ^= 1;
    if (++ahead_step_ < steps_) return;
    ahead_step_ = 0;
    ahead_token_ += stride_;
    if (rows_.buffers > 1) ahead_buffer_ ^= 1;
  }

  const Block& block_;
  const TokenRows<Storage>& rows_;
  const int threads_, thread_, groups_, steps_;
  int64_t ahead_token_;  // of the step to be fetched
  const int64_t last_, stride_;
  int ahead_step_ = 0, ahead_stage_ = 0, ahead_buffer_ = 0;
  int step_ = 0, stage_ = 1, token_buffer_ = 1;  // of the step in use
};

// Where gradients of a source are written: [T, D] in the storage's type or in float32.
template <class Storage>
struct GradientRow {
  void* rows;  // null: not wanted
  bool in_float, accumulate;
};

// Its channels from `at` on, if there is something to add to.
template <class Storage, int kN>
ATTNRES_DEVICE void load_gradient(const GradientRow<Storage>& from, int64_t at, float (&to)[kN]) {
  if (from.rows == nullptr || !from.accumulate) return;
  if (sizeof(Storage) == 4 || from.in_float) {
    return load_floats(static_cast<const float*>(from.rows) + at, to);
  }
  load_row(static_cast<const Storage*>(from.rows) + at, to);
}

template <class Storage, int kN>
ATTNRES_DEVICE void store_gradient(const GradientRow<Storage>& to, int64_t at,
                                   const float (&gradient)[kN]) {
  if (to.rows == nullptr) return;
  if (sizeof(Storage) == 4 || to.in_float) {
    return store_floats(static_cast<float*>(to.rows) + at, gradient);
  }
  store_row(static_cast<Storage*>(to.rows) + at, gradient);
}

// Adds to, or overwrites, the channels of a gradient from `at` on.
template <class Storage, int kN>
ATTNRES_DEVICE void put_gradient(const GradientRow<Storage>& to, int64_t at,
                                 float (&gradient)[kN]) {
  float before[kN] = {};
  load_gradient(to, at, before);
  ATTNRES_UNROLL
  for (int j = 0; j < kN; ++j) gradient[j] += before[j];
  store_gradient(to, at, gradient);
}

}  // namespace attnres::gpu
