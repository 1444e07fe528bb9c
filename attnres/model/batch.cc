#include "attnres/model/batch.h"

#include <utility>

namespace attnres {

Spans Batch::spans() const {
  if (sequences.empty()) return Spans::whole(inputs_BT.size(0), inputs_BT.size(1));
  std::vector<Span> spans;
  for (const int64_t tokens : sequences) spans.push_back({.tokens = tokens});
  return {std::move(spans), nullptr};
}

}  // namespace attnres
