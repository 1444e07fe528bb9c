// The depth-attention kernels: raw pointers, no tensor library, no threads of their own. A call
// works on a range of tokens; the caller spreads ranges over threads.
//
// Every token's sources are read from memory once: the dot products and sums of squares of a token
// leave its sources in cache for the weighted sum. Rows may be unaligned and of any width.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace attnres::kernel {

// Bfloat16 as stored: the upper half of a float32. Arithmetic on it is done in float32, and
// results are rounded to the nearest, ties to even.
struct BFloat16 {
  uint16_t bits;
};

// What a storage type is computed in.
template <class Storage>
struct ComputeType {
  using Type = Storage;
};
template <>
struct ComputeType<BFloat16> {
  using Type = float;
};
template <class Storage>
using Compute = typename ComputeType<Storage>::Type;

// The inputs of both directions. N >= 1 sources, T >= 0 tokens, D >= 1 channels.
template <class Storage>
struct DepthAttentionInputs {
  const Storage* const* sources_N;         // each [T, D]
  const Compute<Storage>* folded_query_D;  // pseudo-query times key-norm gain
  int64_t num_sources, num_tokens, width;
};

template <class Storage>
struct DepthAttentionForward {
  DepthAttentionInputs<Storage> inputs;
  double eps;
  Storage* output_TD;
  Compute<Storage>* weights_NT;      // saved for the backward
  Compute<Storage>* inverse_rms_NT;  // saved for the backward
};

template <class Storage>
struct DepthAttentionBackward {
  DepthAttentionInputs<Storage> inputs;
  const Compute<Storage>* weights_NT;
  const Compute<Storage>* inverse_rms_NT;
  const Storage* grad_output_TD;
  const Compute<Storage>* grad_weights_NT;  // may be null: zero
  Storage* const* grad_sources_N;           // each [T, D], or null where not wanted
};

// The instruction sets that the kernels were compiled for and this machine has, best first; calls
// use the first.
std::vector<std::string> instruction_sets();

// Computes tokens [first, last).
void depth_attention_forward(const DepthAttentionForward<float>&, int64_t first, int64_t last);
void depth_attention_forward(const DepthAttentionForward<double>&, int64_t first, int64_t last);
void depth_attention_forward(const DepthAttentionForward<BFloat16>&, int64_t first, int64_t last);

// Writes the sources' gradients of tokens [first, last), and adds these tokens' part of the folded
// query's gradient to `grad_folded_query_D`, in the order of the tokens.
void depth_attention_backward(const DepthAttentionBackward<float>&, int64_t first, int64_t last,
                              float* grad_folded_query_D);
void depth_attention_backward(const DepthAttentionBackward<double>&, int64_t first, int64_t last,
                              double* grad_folded_query_D);
void depth_attention_backward(const DepthAttentionBackward<BFloat16>&, int64_t first, int64_t last,
                              float* grad_folded_query_D);

}  // namespace attnres::kernel
