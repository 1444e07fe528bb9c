// What this machine's processor, and the libtorch on it, can multiply with.
#pragma once

namespace attnres {

struct Processor {
  bool amd = false;
  bool avx512 = false;      // F, BW, DQ and VL
  bool bfloat16 = false;    // products of bfloat16 numbers
  bool has_onednn = false;  // this libtorch, as an operation (mkldnn::_linear_pointwise)
};

const Processor& processor();

}  // namespace attnres
