#include "attnres/model/batch.h"

#include <numeric>
#include <utility>

namespace attnres {

int64_t Batch::tokens() const {
  if (filled.empty()) return inputs_BT.numel();
  return std::accumulate(filled.begin(), filled.end(), int64_t{0});
}

Spans Batch::spans() const {
  const int64_t rows = inputs_BT.size(0), length = inputs_BT.size(1);
  std::vector<Span> spans(sequences.empty() ? rows : 0, Span{.tokens = length});
  for (const int64_t tokens : sequences) spans.push_back({.tokens = tokens});
  std::vector<FillerRows> fillers;
  for (int64_t row = 0; row < std::ssize(filled); ++row) {
    if (filled[row] == length) continue;
    fillers.push_back({.first = row * length + filled[row], .count = length - filled[row]});
  }
  return {std::move(spans), nullptr, std::move(fillers)};
}

}  // namespace attnres
