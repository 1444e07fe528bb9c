#include "attnres/layers/experts.h"

#include "attnres/model/layer_kinds/layer_kinds.h"

namespace attnres {
namespace {

void resolve_experts(ModelConfig& config, const std::string& path) {
  config.settings<ExpertsSettings>().resolve(config.ffn_width, path + ".experts");
}

std::unique_ptr<Sublayer> make_experts(const ModelConfig& config, const LayerPlace& place,
                                       ParameterRegistry& parameters) {
  return std::make_unique<Experts>(config.settings<ExpertsSettings>(), config.activation, place,
                                   parameters);
}

HuggingFaceNames experts_in_hugging_face() {
  HuggingFaceNames names = weights_in(
      "block_sparse_moe.",
      {"gate", "routed_expert_down_proj", "routed_expert_norm", "routed_expert_up_proj"});
  names.merge(weights_in("block_sparse_moe.experts.{}.", {"w1", "w2", "w3"}));
  names["gate_bias"] = "block_sparse_moe.gate.bias";
  for (const std::string map : {"w1", "w2", "w3"}) {
    names[map + "_bias"] = "block_sparse_moe.experts.{}." + map + ".bias";
  }
  names["e_score_correction_bias"] = "block_sparse_moe.gate.e_score_correction_bias";
  names["shared_w1"] = "block_sparse_moe.shared_experts.gate_proj.weight";
  names["shared_w2"] = "block_sparse_moe.shared_experts.down_proj.weight";
  names["shared_w3"] = "block_sparse_moe.shared_experts.up_proj.weight";
  return names;
}

}  // namespace

LayerKind experts_kind() {
  return {
      .name = kExperts,
      .keys = {"experts"},
      .settings =
          settings_under<ExpertsSettings>("experts", "experts in the place of feed-forwards"),
      .missing = "experts (count is 0)",
      .is_in =
          [](const ModelConfig& config) { return config.settings<ExpertsSettings>().count != 0; },
      .resolve = resolve_experts,
      .make = make_experts,
      .shared_out = [](const ModelConfig& config) -> NumbersByKey {
        return {{"experts.width", config.settings<ExpertsSettings>().width}};
      },
      .hugging_face = experts_in_hugging_face()};
}

}  // namespace attnres
