#include "attnres/layers/earlier_tokens.h"

#include <ATen/ops/cat.h>

#include <algorithm>

#include "attnres/layers/sequence_pool.h"
#include "attnres/ops/paged_attention/paged_attention.h"

namespace attnres {
namespace {

// Of more, queries share the keys that they read.
constexpr int64_t kTokensAlone = 8;

std::vector<SeenTokens> seen_by_each(const Spans& spans, int64_t window = 0) {
  std::vector<SeenTokens> seen;
  for (const Span& span : spans.all()) {
    const int64_t* pages = spans.pool()->pages(span.sequence).data();
    for (int64_t t = span.position; t < span.end(); ++t) {
      seen.push_back({pages, window == 0 ? 0 : std::max<int64_t>(0, t + 1 - window), t + 1});
    }
  }
  return seen;
}

}  // namespace

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

bool reads_pages(const Spans& spans, const at::Tensor& queries) {
  return spans.pool() != nullptr && !queries.requires_grad() && can_page_attention(queries) &&
         std::all_of(spans.all().begin(), spans.all().end(),
                     [](const Span& span) { return span.tokens <= kTokensAlone; });
}

at::Tensor with_pages(const Spans& spans, int layer, const at::Tensor& queries,
                      const at::Tensor& keys, const at::Tensor& values, int64_t window) {
  SequencePool& pool = *spans.pool();
  pool.write_tokens(layer, 0, spans, keys);
  pool.write_tokens(layer, 1, spans, values);
  return paged_attention(queries, pool.token_rows(layer, 0), pool.token_rows(layer, 1),
                         seen_by_each(spans, window), pool.page_tokens());
}

at::Tensor with_latent_pages(const Spans& spans, int layer, const at::Tensor& queries,
                             const at::Tensor& latents, int64_t rank, double scale) {
  SequencePool& pool = *spans.pool();
  pool.write_tokens(layer, 0, spans, latents);
  return paged_latent_attention(queries, pool.token_rows(layer, 0), rank, scale,
                                seen_by_each(spans), pool.page_tokens());
}

}  // namespace attnres
