// Rotary positions beyond the context that a model was trained on first: the frequencies
// f_c = theta^(-2c/K) changed, c < K/2. With s = factor, N = original_context and the wavelength
// w_c = 2 pi / f_c:
//
//   linear   f_c / s (Chen et al., arXiv 2306.15595)
//   llama3   f_c where w_c < N / high_freq_factor, f_c / s where w_c > N / low_freq_factor, and
//            between them (1 - m) f_c / s + m f_c, where
//            m = (N / w_c - low_freq_factor) / (high_freq_factor - low_freq_factor)
//   yarn     (1 - m_c) f_c + m_c f_c / s (Peng et al., arXiv 2309.00071), m_c rising linearly
//            from 0 at the pair that turns beta_fast times in N positions to 1 at that of beta_slow
//            turns (rounded outwards to whole pairs if `truncate`), and cosine and sine times
//            attention_factor
#pragma once

#include <cstdint>
#include <string>

#include "attnres/ops/rotary/rotary.h"
#include "attnres/support/config_key.h"

namespace attnres {

struct RopeScaling {
  std::string type = "none";
  double factor = 1;
  int64_t original_context = 0;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double beta_fast = 32;
  double beta_slow = 1;
  double attention_factor = 0;
  bool truncate = true;

  template <class V>
  void visit(V& v) {
    v("type", type, "how the frequencies of rotary positions are changed",
      one_of({"none", "linear", "llama3", "yarn"}));
    v("factor", factor, "context now over context trained first; 1 with type none", factor_from(1));
    v("original_context", original_context,
      "of llama3 and yarn, which need it: tokens of the context trained first", at_least(0));
    v("low_freq_factor", low_freq_factor,
      "of llama3: context over the wavelength beyond which frequencies are divided by the factor",
      positive_factor());
    v("high_freq_factor", high_freq_factor,
      "of llama3, above low_freq_factor: context over the wavelength below which they stay",
      positive_factor());
    v("beta_fast", beta_fast, "of yarn: turns in the context from which frequencies stay",
      positive_factor());
    v("beta_slow", beta_slow,
      "of yarn, at most beta_fast: turns up to which they are divided by the factor",
      positive_factor());
    v("attention_factor", attention_factor,
      "of yarn: by which cosine and sine are multiplied; 0 stands for 0.1 ln(factor) + 1",
      factor_from(0));
    v("truncate", truncate, "of yarn: whether these turns are rounded outwards to whole pairs");
  }

  bool is_none() const { return type == "none"; }

  // Throws UsageError naming the key, `path` before it.
  void check(const std::string& path) const;
};

// The frequencies of heads of K channels.
RotaryFrequencies scaled_frequencies(int64_t head_width, double theta, const RopeScaling& scaling);

}  // namespace attnres
