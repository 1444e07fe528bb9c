#include <ATen/core/Tensor.h>

#include "attnres/layers/attention.h"
#include "attnres/model/layer_kinds/layer_kinds.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

void check_heads(const ModelConfig& config, const std::string& path) {
  require_usage(config.width % config.heads == 0, "{}.width: {} is not divisible by {} heads", path,
                config.width, config.heads);
  require_usage(config.width / config.heads % 2 == 0,
                "{}.heads: rotary positions need an even head width, {} / {} is {}", path,
                config.width, config.heads, config.width / config.heads);
}

std::unique_ptr<Sublayer> make_grouped_query(const ModelConfig& config, const SublayerNeeds& needs,
                                             int site, ParameterRegistry& parameters) {
  const AttentionShape shape = {.width = config.width,
                                .heads = config.heads,
                                .kv_heads = config.kv_heads,
                                .head_width = config.width / config.heads,
                                .rope_theta = config.rope_theta,
                                .init_std = config.init_std,
                                .needs = needs};
  return std::make_unique<Attention>(shape, site, parameters);
}

// The rows of a query or key map: of a head, c and c + K/2 become 2c and 2c + 1.
at::Tensor interleave_pairs(const at::Tensor& weight, int64_t heads) {
  return weight.view({heads, 2, weight.size(0) / heads / 2, weight.size(1)})
      .transpose(1, 2)
      .reshape(weight.sizes());
}

// Back.
void read_interleaved(const at::Tensor& stored, const at::Tensor& weight, int64_t heads) {
  const int64_t pairs = weight.size(0) / heads / 2;
  weight.view({heads, 2, pairs, -1})
      .transpose(1, 2)
      .copy_(stored.view({heads, pairs, 2, weight.size(1)}));
}

GgufPart interleaved(const std::string& name, const std::string& role, int64_t heads) {
  using Tensors = std::vector<at::Tensor>;
  return {.name = name,
          .roles = {role},
          .make = [heads](const Tensors& of) { return interleave_pairs(of[0], heads); },
          .read = [heads](const at::Tensor& stored,
                          const Tensors& of) { read_interleaved(stored, of[0], heads); },
          .reads_rows = true};
}

std::vector<GgufPart> grouped_query_in_gguf(const ModelConfig& config, GgufArchitecture) {
  return {interleaved("attn_q.weight", "q_proj", config.heads),
          interleaved("attn_k.weight", "k_proj", config.kv_heads),
          {.name = "attn_v.weight", .roles = {"v_proj"}},
          {.name = "attn_output.weight", .roles = {"o_proj"}}};
}

}  // namespace

LayerKind grouped_query_kind() {
  return {.name = kGroupedQuery,
          .keys = {"heads", "kv_heads", "rope_theta"},
          .settings = "",
          .missing = "grouped_query attention",
          .is_in = [](const ModelConfig& config) { return config.has_attention(kGroupedQuery); },
          .resolve = check_heads,
          .make = make_grouped_query,
          .hugging_face = weights_in("self_attn.", {"q_proj", "k_proj", "v_proj", "o_proj"}),
          .gguf = grouped_query_in_gguf};
}

}  // namespace attnres
