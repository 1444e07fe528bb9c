// The two-phase schedule of depth attention (arXiv 2603.15031, Algorithm 1), forward and backward.
// Phase 1 reads the sources that are finished when a group of sites begins once for all of them;
// phase 2 merges, at each site, what came since, and does what stands around it: the pending
// sublayer output is added to the partial sum, and the sublayer's input norm is applied. The result
// is that of depth_attention followed by RMSNorm, to rounding; docs/depth-attention.md has the
// algebra and the traffic.
//
// Sources are [..., D], of one shape, floating dtype and device. By kernels where the CPU has them,
// else by tensor operations, or by what a device registers (phases.h). Kept for the backward,
// beside the sources: x, which the sublayer keeps anyway, and per site and source a score, a weight
// and a reciprocal RMS a token. Gains of magnitude below 1e-20 count as 1e-20 there.
//
// Largest errors of x and of the sources' gradients, and bit-reproducibility, as depth_attention.h
// says. The gradients of pseudo-queries and gains are small differences of sums over the channels
// of x as it was rounded: float32 3e-5, float64 6e-14, bfloat16 0.06 (0.25 of one channel),
// relative to their largest magnitude, or to a tenth of the largest gradient if that is more: with
// one source they are zero. What rounding takes from one score's gradient the others of its softmax
// get, so that they hold where sources are alike too, as those of a trained model are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace attnres {

// A finished source, as sites read it. Their backwards add its gradient up in its slot, which is
// `value`'s where it has one; from there it reaches `value`'s own graph (gradient_slot.h).
class DepthSource {
 public:
  explicit DepthSource(const at::Tensor& value);

  const at::Tensor& value() const { return value_; }
  // 1 / RMS a token; computed when the source is first read, undefined before.
  at::Tensor inverse_rms;

 private:
  at::Tensor value_;
};

struct DepthQuery {
  at::Tensor pseudo_query, key_gain;  // w and g, each [D]
};

// What phase 1 leaves for a site, with scores s_i of the sources it read.
struct EarlierSources {
  at::Tensor output;      // o = sum_i e^{s_i - m} v_i, [..., D]
  at::Tensor max;         // m = max s_i, [S, ...], and
  at::Tensor sum;         // ell = sum_i e^{s_i - m}, [S, ...], of the sites that share them;
  at::Tensor queries_SD;  // their pseudo-queries times their key gains:
  int64_t row = 0;        // the site's
};

// Phase 1 of as many sites as there are queries. Computes the sources' reciprocal RMS where it is
// not known yet. Throws Error if sources or queries are none.
std::vector<EarlierSources> depth_attention_phase_one(std::vector<DepthSource>& sources,
                                                      size_t num_sources,
                                                      const std::vector<DepthQuery>& queries,
                                                      double eps);

struct SiteInput {
  at::Tensor x;        // gain * h / sqrt(mean(h^2) + norm_eps), or h where there is no gain
  at::Tensor partial;  // the partial sum with the pending output; undefined where there is neither
};

// What one site reads. All may be missing but not everything: `earlier`, the sources from
// `first_recent` on, and a partial sum, which is partial + pending, or the one of them that is
// defined.
struct SiteSources {
  EarlierSources* earlier = nullptr;
  std::vector<DepthSource>* sources = nullptr;
  size_t first_recent = 0;
  at::Tensor partial, pending;
};

// h = sum alpha_i v_i over all of them, and its norm, unless `norm_gain` is undefined. `eps` is
// that of the keys' RMS.
SiteInput depth_attention_phase_two(const SiteSources& site, const DepthQuery& query, double eps,
                                    const at::Tensor& norm_gain, double norm_eps);

}  // namespace attnres
