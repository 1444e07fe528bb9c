// Block Attention Residuals (arXiv 2603.15031, section 3.2, Eqs. 2 to 6):
//   h_l = sum_i alpha_{i->l} v_i,  alpha_{i->l} = softmax_i( w_l . (g_l * RMS(v_i)) )
// Block n holds `block_size` consecutive sublayers, the last block what remains; its representation
// b_n is the sum of their outputs, b_0 the token embedding. The first sublayer of a block reads
// b_0 .. b_{n-1}; the others also the partial sum of their own block. The output site has its own w
// and g and reads every block, a last short one by its final partial sum.
//
// w_l starts at zero, where alpha is uniform; g_l at one. Site 0 has the embedding as its only
// source, so it has neither. RMS uses the model's norm_eps. Softmax in float32 or better.
//
// The ablation arms of Table 4 are settings, and so are two more: pseudo-queries that start random,
// and a kernel that factorises (ops/depth_scores), whose weights are nearly uniform where w_l is
// zero. The fused operation serves those with a learned query, softmax, normed keys and one head,
// in two phases where every site reads every source; the others' scores and sums are an operation
// each. The report leaves open, and we chose: the input of an input-dependent query is the mixed
// input of the site before; W_l starts as w_l would, the logits without a query at zero; the RMS of
// a multi-head key is over all d channels.
#pragma once

#include <string>
#include <vector>

#include "attnres/depth/depth_mixing.h"
#include "attnres/depth/mechanism.h"

namespace attnres {

// Settings of Full; Block AttnRes has block_size as a setting too, or num_blocks in its place;
// without either it makes 8 blocks.
struct AttnResSettings {
  explicit AttnResSettings(const MixerShape& shape);

  int64_t block_size = 1;  // S, in sublayers, from 1 to L
  // "learned" w_l; "input_dependent": W_l h_{l-1}, W_l [d, d]; "none": a learned logit a source.
  std::string query = "learned";
  // "softmax"; "sigmoid": every source weighed by itself; "factorised": f(q) . f(k_i), f = elu + 1,
  // over its sum
  std::string weights = "softmax";
  bool key_norm = true;  // off: keys are the sources as they are, and there is no g_l
  int64_t window;        // sources read beside the embedding: the newest; L reads all
  int64_t heads = 1;     // channel groups, each with weights of its own; divides d
  // eps of a site's input norm: "fixed" is the model's norm_eps; "per_source_count" divides it by
  // n^2, n the site's number of sources, so that with zero pseudo-queries (h the mean of n sources)
  // the model equals a residual one to rounding.
  std::string norm_eps = "fixed";
  // Standard deviation of the normal numbers with which w_l, or W_l, starts; 0 for zeros. Without
  // effect on a model whose parameters are read.
  double query_init = 0;

  template <class V>
  void visit(V& v) {
    v("query", query);
    v("weights", weights);
    v("key_norm", key_norm);
    v("window", window);
    v("heads", heads);
    v("norm_eps", norm_eps);
    v("query_init", query_init);
  }
  void check(const MixerShape& shape) const;
  std::string formula(const MixerShape& shape) const {
    return formula_over(shape, "v", "v_0 .. v_l");
  }

  // Whether it computes the report's mechanism, with blocks of any size, and no arm of it.
  bool is_plain(const MixerShape& shape) const;
  bool has_one_norm_eps() const { return norm_eps == "fixed"; }
  bool operator==(const AttnResSettings&) const = default;

 protected:
  // The formula over sources `v`, which are `which`.
  std::string formula_over(const MixerShape& shape, const std::string& v,
                           const std::string& which) const;
};

// Where the block size is a setting.
struct BlockAttnResSettings : AttnResSettings {
  explicit BlockAttnResSettings(const MixerShape& shape);

  template <class V>
  void visit(V& v) {
    v("block_size", block_size);
    AttnResSettings::visit(v);
  }
  std::string formula(const MixerShape& shape) const {
    return formula_over(shape, "b", "block sums b_i");
  }
  // num_blocks N in the place of block_size, as the report keeps N near 8 at every size.
  static Json respell(Json json, const MixerShape& shape);
};

// The settings of either mechanism (Full has block_size 1); null of every other.
const AttnResSettings* attn_res_settings(const DepthMixing& mixing);

// What the parameters of both are, whatever the arm.
std::vector<RoleText> attn_res_roles();

// Full Attention Residuals, which this mixer computes as blocks of one, with these texts.
Mechanism attn_res_mechanism(const MechanismText& text);

}  // namespace attnres
