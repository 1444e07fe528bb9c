#include "attnres/layers/rotary_positions.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace attnres {

RotaryTable rotary_of(const Spans& spans, const RotaryFrequencies& frequencies,
                      at::ScalarType dtype) {
  const std::vector<Span>& all = spans.all();
  const auto table_of = [&](const Span& span) {
    return rotary_table(span.position, span.tokens, frequencies, dtype);
  };
  const bool alike = std::all_of(all.begin(), all.end(), [&](const Span& span) {
    return span.position == all[0].position && span.tokens == all[0].tokens;
  });
  if (alike) return table_of(all[0]);
  std::vector<at::Tensor> cosines, sines;
  for (const Span& span : all) {
    const RotaryTable table = table_of(span);
    cosines.push_back(table.cosine);
    sines.push_back(table.sine);
  }
  return {at::cat(cosines), at::cat(sines)};
}

at::Tensor turned(const at::Tensor& x_THK, const RotaryTable& table) {
  return apply_rotary(x_THK.unflatten(0, {-1, table.cosine.size(0)}), table).flatten(0, 1);
}

}  // namespace attnres
