// What a sublayer reads of the m residual streams of a token and what it leaves in them, a token's
// streams while they are in the cache. Raw pointers, no tensor library, no threads of its own.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

// A token has m rows of `width` numbers.
struct StreamSizes {
  int64_t streams, width;
};

// h = sum_i a_i H_i
template <class Storage>
struct StreamsRead {
  using T = Compute<Storage>;
  StreamSizes sizes;
  const Storage* streams_TMD;
  const T* read_TM;
  Storage* h_TD;
};

// dH_i = a_i dh,  da_i = dh . H_i
template <class Storage>
struct StreamsReadBackward {
  using T = Compute<Storage>;
  StreamSizes sizes;
  const Storage* streams_TMD;
  const T* read_TM;
  const Storage* grad_h_TD;
  T* grad_streams_TMD;  // null: not wanted, as below
  bool accumulate;      // adds to what is there instead of replacing it
  T* grad_read_TM;
};

// H'_j = sum_i A_ji H_i + b_j y
template <class Storage>
struct StreamsWrite {
  using T = Compute<Storage>;
  StreamSizes sizes;
  const Storage* streams_TMD;
  const T* mix_TMM;  // null: the identity
  const T* write_TM;
  const Storage* y_TD;
  Storage* written_TMD;
};

// dH_i = sum_j A_ji dH'_j,  dA_ji = dH'_j . H_i,  db_j = dH'_j . y,  dy = sum_j b_j dH'_j
template <class Storage>
struct StreamsWriteBackward {
  using T = Compute<Storage>;
  StreamSizes sizes;
  const Storage* streams_TMD;
  const T* mix_TMM;
  const T* write_TM;
  const Storage* y_TD;
  const Storage* grad_written_TMD;
  T* grad_streams_TMD;
  bool accumulate;  // as above, in grad_streams
  T* grad_mix_TMM;
  T* grad_write_TM;
  Storage* grad_y_TD;
};

// Tokens [first, last).
ATTNRES_DECLARE(read_streams, StreamsRead)

ATTNRES_DECLARE(read_streams_backward, StreamsReadBackward)

ATTNRES_DECLARE(write_streams, StreamsWrite)

ATTNRES_DECLARE(write_streams_backward, StreamsWriteBackward)

}  // namespace attnres::kernel
