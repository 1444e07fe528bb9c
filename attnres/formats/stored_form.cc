#include "attnres/formats/stored_form.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <string>

#include "attnres/formats/paired_rows.h"
#include "attnres/layers/latent_attention.h"
#include "attnres/model/parameter_names.h"

namespace attnres {
namespace {

StoredForm paired(const PairedRows& rows) {
  return {.to_file = [rows](const at::Tensor& own) { return rows.side_by_side(own); },
          .from_file = [rows](const at::Tensor& stored) { return rows.in_halves(stored); }};
}

}  // namespace

StoredForm stored_form(FileLayout layout, const ModelConfig& model, const Parameter& parameter) {
  // Gains of keys are no part of Gemma, but of what it is retrofitted with.
  if (layout == FileLayout::gemma3 && parameter.kind == ParameterKind::norm_gain &&
      parameter.role != "key_norm") {
    return {.to_file = [](const at::Tensor& gain) { return gain - 1; },
            .from_file = [](const at::Tensor& stored) { return stored + 1; }};
  }
  if (layout != FileLayout::deepseek_v3) return {};
  const LatentAttentionSettings& latent = model.settings<LatentAttentionSettings>();
  const int64_t pairs = latent.shared_key_width / 2;
  if (parameter.role.ends_with(kLowRankIn)) return {};
  // The outputs of one of low rank are those of the map that it is beside.
  const std::string role = map_of_low_rank(parameter.role);
  if (role == "kv_a_proj_with_mqa") return paired({1, latent.kv_rank, pairs});
  const bool is_query = role == "q_proj" || role == "q_b_proj";
  return is_query ? paired({model.heads, latent.key_width, pairs}) : StoredForm{};
}

}  // namespace attnres
