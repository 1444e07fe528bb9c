// Tokens as a model is trained on them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "attnres/layers/spans.h"

namespace attnres {

// targets_BT[b, t] is the token after inputs_BT[b, t], or -100 where it does not count. Both int64,
// on the CPU.
struct Batch {
  at::Tensor inputs_BT, targets_BT;
  // How many tokens each document has, or what there is of one, where those of a row do not see
  // each other: one after another, row by row. Empty: a row is one sequence.
  std::vector<int64_t> sequences = {};
  // How many tokens each row has before those that only fill it up, which count nowhere. Empty: all
  // rows are full.
  std::vector<int64_t> filled = {};

  int64_t tokens() const;  // without those that fill up rows
  Spans spans() const;
};

}  // namespace attnres
