#include "attnres/formats/stored_form.h"

#include <ATen/ATen.h>

namespace attnres {
namespace {

// Rows of heads: of each, `before` that stay, then `pairs` pairs of channels, in halves (c and
// c + pairs) or side by side (2c and 2c + 1).
struct PairedRows {
  int64_t heads, before, pairs;

  at::Tensor side_by_side(const at::Tensor& rows) const { return reordered(rows, 2, pairs); }
  at::Tensor in_halves(const at::Tensor& rows) const { return reordered(rows, pairs, 2); }

 private:
  at::Tensor reordered(const at::Tensor& rows, int64_t outer, int64_t inner) const {
    const at::Tensor of_heads = rows.view({heads, before + 2 * pairs, -1});
    const at::Tensor turned = of_heads.narrow(1, before, 2 * pairs)
                                  .unflatten(1, {outer, inner})
                                  .transpose(1, 2)
                                  .flatten(1, 2);
    return at::cat({of_heads.narrow(1, 0, before), turned}, 1).view(rows.sizes());
  }
};

StoredForm paired(const PairedRows& rows) {
  return {.to_file = [rows](const at::Tensor& own) { return rows.side_by_side(own); },
          .from_file = [rows](const at::Tensor& stored) { return rows.in_halves(stored); }};
}

}  // namespace

StoredForm stored_form(FileLayout layout, const ModelConfig& model, const Parameter& parameter) {
  if (layout == FileLayout::gemma3 && parameter.kind == ParameterKind::norm_gain) {
    return {.to_file = [](const at::Tensor& gain) { return gain - 1; },
            .from_file = [](const at::Tensor& stored) { return stored + 1; }};
  }
  if (layout != FileLayout::deepseek_v3) return {};
  const LatentAttentionSettings& latent = model.latent_attention;
  const int64_t pairs = latent.shared_key_width / 2;
  if (parameter.role == "kv_a_proj_with_mqa") return paired({1, latent.kv_rank, pairs});
  const bool is_query = parameter.role == "q_proj" || parameter.role == "q_b_proj";
  return is_query ? paired({model.heads, latent.key_width, pairs}) : StoredForm{};
}

}  // namespace attnres
