#include "attnres/model/parameter_names.h"

#include <fmt/core.h>

#include <map>
#include <set>

namespace attnres {

namespace {

// Roles whose name in a file is another, by where they sit.
const std::map<std::string, std::string> of_attention = {
    {"input_norm", "input_layernorm.weight"},
    {"pseudo_query", "self_attention_res_proj.weight"},
    {"key_norm", "self_attention_res_norm.weight"},
    {"A_log", "self_attn.A_log"},
    {"dt_bias", "self_attn.dt_bias"},
};
const std::map<std::string, std::string> of_feed_forward = {
    {"input_norm", "post_attention_layernorm.weight"},
    {"pseudo_query", "mlp_res_proj.weight"},
    {"key_norm", "mlp_res_norm.weight"},
    {"gate_proj", "mlp.gate_proj.weight"},
    {"up_proj", "mlp.up_proj.weight"},
    {"down_proj", "mlp.down_proj.weight"},
    {"gate", "block_sparse_moe.gate.weight"},
    {"e_score_correction_bias", "block_sparse_moe.gate.e_score_correction_bias"},
    {"shared_w1", "block_sparse_moe.shared_experts.gate_proj.weight"},
    {"shared_w2", "block_sparse_moe.shared_experts.down_proj.weight"},
    {"shared_w3", "block_sparse_moe.shared_experts.up_proj.weight"},
    {"routed_expert_down_proj", "block_sparse_moe.routed_expert_down_proj.weight"},
    {"routed_expert_norm", "block_sparse_moe.routed_expert_norm.weight"},
    {"routed_expert_up_proj", "block_sparse_moe.routed_expert_up_proj.weight"},
};
const std::map<std::string, std::string> of_output = {
    {"input_norm", "model.norm.weight"},
    {"pseudo_query", "model.output_attn_res_proj.weight"},
    {"key_norm", "model.output_attn_res_norm.weight"},
    {"head", "lm_head.weight"},
};
// Roles of the attentions that are named alike in a file.
const std::set<std::string> kSelfAttention = {
    "q_proj",         "k_proj",    "v_proj",   "o_proj",        "q_conv1d", "k_conv1d",
    "v_conv1d",       "f_a_proj",  "f_b_proj", "b_proj",        "g_a_proj", "g_b_proj",
    "g_proj",         "o_norm",    "q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa",
    "kv_a_layernorm", "kv_b_proj",
};
// Stacks of experts.
const std::set<std::string> kExperts = {"w1", "w2", "w3"};

bool is_stack_of_experts(const Parameter& parameter) {
  return parameter.site % 2 == 1 && kExperts.contains(parameter.role);
}

}  // namespace

std::string hugging_face_name(const Parameter& parameter, int sublayers, int64_t expert) {
  const int site = parameter.site;
  if (parameter.kind == ParameterKind::embedding) return "model.embed_tokens.weight";
  if (site == kEmbeddingSite) return "model.depth_mixing." + parameter.role;
  const bool at_output = site == sublayers, attention = site % 2 == 0;
  const auto& names = at_output ? of_output : attention ? of_attention : of_feed_forward;
  const auto name = names.find(parameter.role);
  if (at_output) {
    return name == names.end() ? "model.output_depth_mixing." + parameter.role : name->second;
  }
  const std::string layer = fmt::format("model.layers.{}.", site / 2);
  if (name != names.end()) return layer + name->second;
  if (attention && kSelfAttention.contains(parameter.role)) {
    return layer + "self_attn." + parameter.role + ".weight";
  }
  if (!attention && kExperts.contains(parameter.role)) {
    return fmt::format("{}block_sparse_moe.experts.{}.{}.weight", layer, expert, parameter.role);
  }
  return layer + (attention ? "self_attention" : "mlp") + "_depth_mixing." + parameter.role;
}

at::Tensor StoredTensor::view(const at::Tensor& parameter) const {
  return (expert < 0 ? parameter : parameter.select(0, expert)).view(shape);
}

std::vector<StoredTensor> stored_tensors(const Parameter& parameter, int sublayers) {
  std::vector<int64_t> shape = parameter.tensor.sizes().vec();
  if (!is_stack_of_experts(parameter)) {
    // A pseudo-query is a linear map to one score; a depthwise convolution has one input a channel.
    if (parameter.kind == ParameterKind::pseudo_query) shape.insert(shape.begin(), 1);
    if (parameter.kind == ParameterKind::convolution) shape.insert(shape.begin() + 1, 1);
    return {{hugging_face_name(parameter, sublayers), shape}};
  }
  const int64_t experts = shape[0];
  shape.erase(shape.begin());
  std::vector<StoredTensor> tensors;
  for (int64_t e = 0; e < experts; ++e) {
    tensors.push_back({hugging_face_name(parameter, sublayers, e), shape, e});
  }
  return tensors;
}

}  // namespace attnres
