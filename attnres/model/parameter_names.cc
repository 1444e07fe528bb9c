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
  if (site == kEmbeddingSite) return "model.embed_tokens.weight";
  if (site == sublayers) return of_output.at(parameter.role) + ".weight";
  const auto& names = site % 2 == 0 ? of_attention : of_feed_forward;
  return fmt::format("model.layers.{}.{}.weight", site / 2, names.at(parameter.role));
}

}  // namespace attnres
