// mHC-lite (arXiv 2601.05732): manifold-constrained hyper-connections with the maps and starts of
// constrained_streams.h whose A is doubly stochastic without iterations (Birkhoff, von Neumann), a
// convex combination of the m! permutation matrices:
//   A = sum_r softmax(s3 P3 z + c3)_r Perm_r
// Perm_r are in lexicographic order, the identity first. `streams` is at most 5 (120 matrices).
//
// A is applied as in mHC, A H. The authors' code (github.com/FFTYYY/mhc-lite) applies the transpose
// of A. Weights of theirs belong here with the logits of every permutation and its inverse swapped.
//
// Start: c3 = 0 for the identity and -8 for the others, near the identity.
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/constrained_streams.h"
#include "attnres/depth/mechanisms/mechanisms.h"

namespace attnres {
namespace {

using MhcLiteSettings = StreamSettings<5>;

// [m!, m, m]: row i of a matrix has its one where the permutation sends i.
at::Tensor permutation_matrices(int64_t m) {
  std::vector<int64_t> permutation(m);
  std::iota(permutation.begin(), permutation.end(), 0);
  std::vector<at::Tensor> matrices;
  do {
    at::Tensor matrix = at::zeros({m, m}, at::kDouble);
    for (int64_t i = 0; i < m; ++i) matrix[i][permutation[i]] = 1;
    matrices.push_back(matrix);
  } while (std::next_permutation(permutation.begin(), permutation.end()));
  return at::stack(matrices);
}

MixMatrix convex_combination(int64_t m, at::Device device) {
  const at::Tensor permutations_RMM = permutation_matrices(m).to(device);
  const int64_t count = permutations_RMM.size(0);
  MixMatrix matrix;
  matrix.start.assign(count, -8);
  matrix.start[0] = 0;
  matrix.keeps_sum = true;
  matrix.of = [m, flat = permutations_RMM.view({count, m * m})](const at::Tensor& logits_TR) {
    const at::Tensor weights_TR = at::softmax(logits_TR, -1);
    return at::matmul(weights_TR, flat.to(weights_TR.scalar_type())).unflatten(-1, {m, m});
  };
  return matrix;
}

class MhcLite final : public ConstrainedStreams {
 public:
  MhcLite(const MhcLiteSettings& settings, const MixerShape& shape, ParameterRegistry& parameters)
      : ConstrainedStreams(settings.streams,
                           convex_combination(settings.streams, parameters.device()), shape,
                           parameters) {}
};

}  // namespace

Mechanism mhc_lite_mechanism() {
  return define_mechanism<MhcLiteSettings, MhcLite>(
      {.name = "mhc_lite",
       .formula = "mhc with A = sum_r softmax_r(maps of H) Perm_r over the m! permutations",
       .start = "A within 1e-2 of the identity, the rest as mhc: near residual",
       .source = "mHC-lite, arXiv 2601.05732",
       .traffic = "(8m + 2)d",
       .details = constrained_streams_details(
           "A = sum_r softmax(logits)_r Perm_r over the permutations r of 0 .. m - 1 in "
           "lexicographic order, the identity first; Perm_r has its ones at (i, r(i)). Site 0 and "
           "the last sublayer's have no A, where it would change nothing: its rows and columns sum "
           "to one. The authors' code applies the transpose of A: for weights of theirs, swap the "
           "logits (rows of P, numbers of c) of each permutation and its inverse."),
       .roles = constrained_streams_roles(
           "; m! of A, one for each permutation (none at site 0 and the last sublayer's)")},
      [](const MhcLiteSettings& settings, const MixerShape&) {
        return 8.0 * settings.streams + 2;
      });
}

}  // namespace attnres
