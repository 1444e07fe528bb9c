// Block Attention Residuals (arXiv 2603.15031, section 3.2, Eqs. 2 to 6):
//   h_l = sum_i alpha_{i->l} v_i,  alpha_{i->l} = softmax_i( c w_l . (g_l * RMS(v_i)) ),  c = 1
// Block n holds `block_size` consecutive sublayers, the last block what remains; its representation
// b_n is the sum of their outputs, b_0 the token embedding. The first sublayer of a block reads
// b_0 .. b_{n-1}; the others also the partial sum of their own block. The output site has its own w
// and g and reads every block, a last short one by its final partial sum.
//
// w_l starts at zero, where alpha is uniform; g_l at one. Site 0 has the embedding as its only
// source, so it has neither. RMS uses the model's norm_eps. Softmax in float32 or better.
//
// The ablation arms of Table 4 are settings, and so are three more: pseudo-queries that start
// random; a kernel that factorises (ops/depth_scores), whose weights are nearly uniform where w_l
// is zero; and another scale c of the scores, a number or learned, c_l = exp(s_l) with s_l = 0 at
// the start (whether depth softmax is too sharp: arXiv 2607.27230). The fused operation serves
// those with a learned query, softmax, normed keys and one head, in two phases where every site
// reads every source; the others' scores and sums are an operation each. A scale is a factor of the
// query, whoever computes. The report leaves open, and we chose: the input of an input-dependent
// query is the mixed input of the site before; W_l starts as w_l would, the logits without a query
// at zero; the RMS of a multi-head key is over all d channels.
//
// A finished block may also be the sum of RMS(y_i) of its outputs, without a gain, in which no
// sublayer outweighs the others by the magnitude of its output (kimmichtank/rms-block-attnres,
// whose eps is 1e-6, here norm_eps); the embedding and the partial sum stay as they are. Inside a
// block two sums are open then, and the second is an operation of its own.
//
// An attention of a Transformer layer j > 0 may read its values of a mixture of their own
// (arXiv 2608.01075): x' = norm(h'_l), h'_l the same over the same sources with a second
// pseudo-query w'_l in the place of w_l; queries and keys read x_l. Gains of keys and input norm
// are the site's, so that with w' = w it is the mechanism without. Phase 1 serves both queries in
// its one pass.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attnres/depth/depth_mixing.h"
#include "attnres/depth/mechanism.h"

namespace attnres {

// Settings of Full; Block AttnRes has block_size as a setting too, or num_blocks in its place;
// without either it makes 8 blocks.
struct AttnResSettings {
  explicit AttnResSettings(const MixerShape& shape);

  int64_t block_size = 1;  // S
  std::string query = "learned";
  std::string weights = "softmax";
  bool key_norm = true;
  int64_t window;
  int64_t heads = 1;
  std::string norm_eps = "fixed";
  double query_init = 0;
  NumberOrWord score_scale = 1;  // c
  bool value_query = false;
  std::string block_summary = "sum";  // of Block

  // With zero pseudo-queries h is the mean of n sources, so that norm_eps per_source_count makes
  // the model equal a residual one to rounding.
  template <class V>
  void visit(V& v) {
    v("query", query, "what sources are compared with",
      one_of({{"learned", "w_l"},
              {"input_dependent", "W_l h_{l-1}, W_l [d, d]"},
              {"none", "a learned logit a source"}}));
    v("weights", weights, "what weighs the sources",
      one_of({{"softmax"},
              {"sigmoid", "every source by itself"},
              {"factorised", "f(q) . f(k_i) over its sum, f = elu + 1"}}));
    v("key_norm", key_norm,
      "whether keys are normed; else they are the sources as they are, and there is no g_l");
    v("window", window, "newest sources that a site reads beside the embedding",
      at_least(1).or_else("all"));
    v("heads", heads, "channel groups, each with weights of its own; divides the width",
      at_least(1));
    v("norm_eps", norm_eps, "eps of a site's input norm",
      one_of({{"fixed", "the model's norm_eps"},
              {"per_source_count", "that over n^2, n the site's number of sources"}}));
    v("query_init", query_init,
      "standard deviation of the normal numbers with which w_l or W_l starts; 0 for zeros. Without "
      "effect on a model whose parameters are read",
      from_to(0, 100));
    v("score_scale", score_scale, "c, the factor of the scores",
      above_to(0, 1000).or_one_of(
          {{"1/sqrt(d)", "d the width, whatever the heads"},
           {"learned", "one a site, 1 at the start; its logarithm is the parameter"}}));
    v("value_query", value_query,
      "whether an attention's values read a mixture of their own, by a second pseudo-query w'_l");
  }
  void check(const MixerShape& shape) const;
  std::string formula(const MixerShape& shape) const {
    return formula_over(shape, "v", "v_0 .. v_l");
  }

  // Whether it computes the report's mechanism, with blocks of any size, and no arm of it.
  bool is_plain(const MixerShape& shape) const;
  // c, or 1 where it is learned.
  double fixed_score_scale(const MixerShape& shape) const;
  bool learns_score_scale() const { return score_scale.word == "learned"; }
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
    v("block_size", block_size, "S, sublayers of a block; at most as many as there are",
      at_least(1).or_else("an eighth of the sublayers"));
    AttnResSettings::visit(v);
    v("block_summary", block_summary, "what a finished block is",
      one_of({{"sum", "of its outputs y_i"}, {"rms", "the sum of RMS(y_i), without a gain"}}));
  }
  // Settings in other words; see respell.
  template <class V>
  static void visit_spellings(V& v) {
    int64_t num_blocks = 0;
    v("num_blocks", num_blocks, "N, the number of blocks, in the place of block_size",
      at_least(1).or_else("block_size says it"));
  }
  std::string formula(const MixerShape& shape) const {
    return formula_over(shape, "b",
                        block_summary == "rms" ? "b_i, sums of RMS(y) of finished blocks and the "
                                                 "newest block's sum of y"
                                               : "block sums b_i");
  }
  // num_blocks N in the place of block_size, as the report keeps N near 8 at every size.
  static Json respell(Json json, const MixerShape& shape);
};

// A setting, as JSON, and what it is where the report's mechanism is computed.
struct SettingOfAnArm {
  std::string key, value, of_plain;
};
// The first setting that makes this an arm of the report's mechanism; nothing where it is plain.
std::optional<SettingOfAnArm> setting_of_an_arm(const BlockAttnResSettings& settings,
                                                const MixerShape& shape);

// The settings of either mechanism (Full has block_size 1); null of every other.
const AttnResSettings* attn_res_settings(const DepthMixing& mixing);

// What the parameters of both are, whatever the arm.
std::vector<RoleText> attn_res_roles();

// Full Attention Residuals, which this mixer computes as blocks of one, with these texts.
Mechanism attn_res_mechanism(const MechanismText& text);

}  // namespace attnres
