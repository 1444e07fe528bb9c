#include "attnres/model/parameter_names.h"

#include <fmt/core.h>

#include <map>

namespace attnres {

std::string hugging_face_name(const Parameter& parameter, int sublayers) {
  static const std::map<std::string, std::string> of_attention = {
      {"input_norm", "input_layernorm"},       {"pseudo_query", "self_attention_res_proj"},
      {"key_norm", "self_attention_res_norm"}, {"q_proj", "self_attn.q_proj"},
      {"k_proj", "self_attn.k_proj"},          {"v_proj", "self_attn.v_proj"},
      {"o_proj", "self_attn.o_proj"},
  };
  static const std::map<std::string, std::string> of_feed_forward = {
      {"input_norm", "post_attention_layernorm"},
      {"pseudo_query", "mlp_res_proj"},
      {"key_norm", "mlp_res_norm"},
      {"gate_proj", "mlp.gate_proj"},
      {"up_proj", "mlp.up_proj"},
      {"down_proj", "mlp.down_proj"},
  };
  static const std::map<std::string, std::string> of_output = {
      {"input_norm", "model.norm"},
      {"pseudo_query", "model.output_attn_res_proj"},
      {"key_norm", "model.output_attn_res_norm"},
      {"head", "lm_head"},
  };
  const int site = parameter.site;
  if (parameter.kind == ParameterKind::embedding) return "model.embed_tokens.weight";
  if (site == kEmbeddingSite) return "model.depth_mixing." + parameter.role;
  const bool at_output = site == sublayers, attention = site % 2 == 0;
  const auto& names = at_output ? of_output : attention ? of_attention : of_feed_forward;
  const auto name = names.find(parameter.role);
  if (at_output) {
    if (name == names.end()) return "model.output_depth_mixing." + parameter.role;
    return name->second + ".weight";
  }
  const std::string layer = fmt::format("model.layers.{}.", site / 2);
  if (name == names.end()) {
    return layer + (attention ? "self_attention" : "mlp") + "_depth_mixing." + parameter.role;
  }
  return layer + name->second + ".weight";
}

}  // namespace attnres
