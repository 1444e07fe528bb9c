#include "attnres/layers/earlier_tokens.h"

#include <ATen/ops/cat.h>

#include "attnres/layers/sequence_pool.h"

namespace attnres {

at::Tensor with_earlier_tokens(const Spans& spans, int layer, const at::Tensor& queries,
                               const std::vector<at::Tensor>& kept, const Attend& attend) {
  SequencePool* pool = spans.pool();
  std::vector<at::Tensor> all(kept.size());
  if (pool == nullptr) {
    return spans.by_group([&](const SpanGroup& group) {
      for (size_t i = 0; i < kept.size(); ++i) all[i] = spans.batch(kept[i], group);
      return attend(spans.batch(queries, group), all);
    });
  }
  for (size_t i = 0; i < kept.size(); ++i) pool->write_tokens(layer, i, spans, kept[i]);
  std::vector<at::Tensor> outputs;
  int64_t row = 0;
  for (const Span& span : spans.all()) {
    for (size_t i = 0; i < kept.size(); ++i)
      all[i] = pool->read_tokens(layer, i, span).unsqueeze(0);
    outputs.push_back(attend(queries.narrow(0, row, span.tokens).unsqueeze(0), all).squeeze(0));
    row += span.tokens;
  }
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs);
}

}  // namespace attnres
