// An attention of one token whose heads a mixer may change, and the same in plain loops.
#pragma once

#include <functional>

#include "tests/depth/plain_vectors.h"

namespace attnres::testing {

constexpr size_t kHeads = 2, kHeadWidth = 3, kAttentionWidth = kHeads * kHeadWidth;

// Keys and values [kHeads * kHeadWidth] of the only token.
struct PlainHeads {
  Vector k, v;
};

inline PlainHeads heads_of(size_t l, const Vector& x) {
  PlainHeads heads;
  for (size_t c = 0; c < x.size(); ++c) {
    heads.k.push_back(std::sin(static_cast<double>(l) + x[(c + 1) % x.size()]));
    heads.v.push_back(x[c] + std::cos(static_cast<double>(2 * l) + x[(c + 2) % x.size()]));
  }
  return heads;
}

inline Vector attention_output(const PlainHeads& heads) {
  Vector y(heads.k.size());
  for (size_t c = 0; c < y.size(); ++c) y[c] = heads.v[c] * (1 + 0.3 * heads.k[(c + 1) % y.size()]);
  return y;
}

inline MixerShape attention_shape(int sublayers) {
  return {.width = kAttentionWidth, .sublayers = sublayers, .heads = kHeads, .kv_heads = kHeads};
}

// What a mixer reads at every site when even sublayers are such attentions.
inline std::vector<Vector> mixed_by_attention(Bench& bench, const Vector& embedding,
                                              int sublayers) {
  const auto row = [](const Vector& v) {
    return vector_tensor(v).view({1, static_cast<int64_t>(v.size())});
  };
  const auto heads_tensor = [](const Vector& v) {
    return vector_tensor(v).view({1, kHeads, kHeadWidth});
  };
  DepthState state = bench.mixer->start(row(embedding));
  MixingAnalysis analysis;
  state.analysis = &analysis;
  std::vector<Vector> mixed;
  for (int l = 0; l <= sublayers; ++l) {
    const SublayerInput input = bench.mixer->read(state);
    const ReadTrace& trace = analysis.read;
    mixed.push_back(as_vector(trace.mixed));
    if (l == sublayers) break;
    const Vector x = as_vector(input.x);
    Vector y = sublayer(l, x);
    if (l % 2 == 0) {
      const PlainHeads plain = heads_of(l, x);
      AttentionHeads heads = {heads_tensor(plain.k), heads_tensor(plain.k), heads_tensor(plain.v)};
      EXPECT_EQ(bench.mixer->needs(l).adapt_heads, static_cast<bool>(input.adapt_heads));
      if (input.adapt_heads) input.adapt_heads(heads);
      y = attention_output({as_vector(heads.k), as_vector(heads.v)});
    }
    bench.mixer->write(state, {row(y)});
  }
  return mixed;
}

// The same on a residual stream in plain loops; `adapt` gives a layer's heads from those that every
// layer up to it projected.
inline std::vector<Vector> expected_by_attention(
    const Bench& bench, const Vector& embedding, int sublayers,
    const std::function<PlainHeads(const std::vector<PlainHeads>& projected)>& adapt) {
  Vector h = embedding;
  std::vector<PlainHeads> projected;
  std::vector<Vector> mixed;
  for (int l = 0; l <= sublayers; ++l) {
    mixed.push_back(h);
    if (l == sublayers) break;
    const Vector x = normed(h, bench.values(l, "input_norm"));
    Vector y = sublayer(l, x);
    if (l % 2 == 0) {
      projected.push_back(heads_of(l, x));
      y = attention_output(adapt(projected));
    }
    h = plus(h, y);
  }
  return mixed;
}

}  // namespace attnres::testing
