#include "attnres/layers/earlier_tokens.h"

#include <ATen/ops/cat.h>

#include <algorithm>

#include "attnres/layers/page_store.h"
#include "attnres/ops/paged_attention/paged_attention.h"

namespace attnres {
namespace {

// The most tokens of a span whose queries read keys each by itself; those of more share them.
constexpr int64_t kTokensAlone = 8;

}  // namespace

at::Tensor with_earlier_tokens(const Spans& spans, int layer, const at::Tensor& queries,
                               const std::vector<KeptParts>& kept, const Attend& attend) {
  std::vector<at::Tensor> all(kept.size());
  PageStore* store = spans.store();
  if (store == nullptr) {
    std::vector<at::Tensor> whole;
    for (const KeptParts& parts : kept) {
      whole.push_back(parts.size() == 1 ? parts[0] : at::cat(parts, -1));
    }
    return spans.by_group([&](const SpanGroup& group) {
      for (size_t k = 0; k < kept.size(); ++k) all[k] = spans.batch(whole[k], group);
      return attend(spans.batch(queries, group), all);
    });
  }
  for (size_t k = 0; k < kept.size(); ++k) store->write_tokens(layer, k, spans, kept[k]);
  std::vector<at::Tensor> outputs;
  int64_t row = 0;
  for (size_t i = 0; i < spans.all().size(); ++i) {
    for (size_t k = 0; k < kept.size(); ++k) {
      all[k] = store->read_tokens(layer, k, spans, i).unsqueeze(0);
    }
    const int64_t tokens = spans.all()[i].tokens;
    outputs.push_back(attend(queries.narrow(0, row, tokens).unsqueeze(0), all).squeeze(0));
    row += tokens;
  }
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs);
}

bool reads_pages(const Spans& spans, const at::Tensor& queries) {
  return spans.pool() != nullptr && !queries.requires_grad() && can_page_attention(queries) &&
         std::all_of(spans.all().begin(), spans.all().end(),
                     [](const Span& span) { return span.tokens <= kTokensAlone; });
}

at::Tensor with_pages(const Spans& spans, int layer, const at::Tensor& queries,
                      const at::Tensor& keys, const at::Tensor& values, int64_t window,
                      const at::Tensor& sinks_H) {
  PageStore& store = *spans.store();
  store.write_tokens(layer, 0, spans, {keys});
  store.write_tokens(layer, 1, spans, {values});
  return paged_attention(queries, store.token_rows(layer, 0), store.token_rows(layer, 1),
                         spans.seen(window), store.page_tokens(), sinks_H);
}

at::Tensor with_latent_pages(const Spans& spans, int layer, const at::Tensor& queries,
                             const KeptParts& latents, int64_t rank, double scale) {
  PageStore& store = *spans.store();
  store.write_tokens(layer, 0, spans, latents);
  return paged_latent_attention(queries, store.token_rows(layer, 0), rank, scale, spans.seen(0),
                                store.page_tokens());
}

}  // namespace attnres
