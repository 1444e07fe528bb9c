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

namespace attnres {

struct RopeScaling {
  std::string type = "none";
  double factor = 1;
  int64_t original_context = 0;  // llama3, yarn
  double low_freq_factor = 1;    // llama3
  double high_freq_factor = 4;   // llama3
  double beta_fast = 32;         // yarn
  double beta_slow = 1;          // yarn
  double attention_factor = 0;   // yarn; 0 stands for 0.1 ln(factor) + 1
  bool truncate = true;          // yarn

  template <class V>
  void visit(V& v) {
    v("type", type);
    v("factor", factor);
    v("original_context", original_context);
    v("low_freq_factor", low_freq_factor);
    v("high_freq_factor", high_freq_factor);
    v("beta_fast", beta_fast);
    v("beta_slow", beta_slow);
    v("attention_factor", attention_factor);
    v("truncate", truncate);
  }

  bool is_none() const { return type == "none"; }

  // Throws UsageError naming the key, `path` before it.
  void check(const std::string& path) const;
};

// The frequencies of heads of K channels.
RotaryFrequencies scaled_frequencies(int64_t head_width, double theta, const RopeScaling& scaling);

}  // namespace attnres
