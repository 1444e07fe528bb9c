// Depth mixing matrices (arXiv 2603.15031, section 6.2 and Fig. 9): how much of each output reaches
// each site. With mixing weights and norm statistics held fixed, what site l reads is linear in the
// token embedding v_0 and the sublayers' outputs v_1 .. v_l, and
//
//   M_{i->l} = tr(dh_l / dv_i) / d,   the mean over tokens.
//
// Where every channel is mixed by itself the trace is exact; otherwise (linear maps over channels)
// it is Hutchinson's estimate from random signs, a few for every token, and scatters around it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "attnres/depth/mixing_analysis.h"

namespace attnres {

using Matrix = std::vector<std::vector<double>>;  // rows of equal length

inline constexpr int kMixingMatrixSamples = 32;

struct MixingMatrix {
  std::string stream;  // which input of the sublayers this is, for mechanisms with several; or ""
  // [L + 1][L + 1]: row l is the site that reads, column i the source v_i. NaN above the diagonal,
  // and in rows of sites that do not read this stream.
  Matrix mean;
  // The same of kMixingMatrixSamples single channels of single tokens, drawn at random: what a mean
  // over tokens and channels mixes up.
  std::vector<Matrix> samples;
};

// Largest rank among the blocks M[k.., ..k] of the lower triangle, rows without numbers left out
// (Bourdin and Fasino; Dao and Gu, arXiv 2405.21060, Def. 3.1). Singular values below 1e-4 of the
// largest count as zero.
int semiseparable_rank(const Matrix& lower_triangle);

// Sees what passes between a mixer and its sublayers. Give it the embedding before the mixer
// starts, have the state's analysis hold weights, and show it every output before it is written and
// every read.
class MixingMatrixProbe {
 public:
  // A leaf in place of the embedding or of an output: the derivatives are taken by it.
  at::Tensor leaf(const at::Tensor& source_TD);
  void on_read(const ReadTrace& trace);

  // After the output site has read. The mixed input comes first.
  std::vector<MixingMatrix> matrices() const;

 private:
  std::vector<at::Tensor> sources_;                       // v_0, v_1, ...
  std::vector<std::map<std::string, at::Tensor>> reads_;  // by site and stream
};

// Matrices of a mixer alone, whose parameters are float64: the outputs of its sublayers are random
// normal vectors, for `tokens` tokens.
std::vector<MixingMatrix> mixing_matrices(const DepthMixer& mixer, int sublayers, int64_t width,
                                          int64_t tokens = 64);

}  // namespace attnres
