#include "attnres/model/parameter_names.h"

#include <fmt/core.h>

#include "attnres/model/layer_kind.h"
#include "attnres/parameters/mixer_parameters.h"

namespace attnres {

namespace {

// What a mixer's roles, and the head, are called where other programs have them too; the roles of
// sublayers are their kind's to name.
const HuggingFaceNames kAtAttention = {
    {"input_norm", "input_layernorm.weight"},
    {"output_norm", "self_attention_output_norm.weight"},
    {"pseudo_query", "self_attention_res_proj.weight"},
    {"key_norm", "self_attention_res_norm.weight"},
};
const HuggingFaceNames kAtFeedForward = {
    {"input_norm", "post_attention_layernorm.weight"},
    {"output_norm", "mlp_output_norm.weight"},
    {"pseudo_query", "mlp_res_proj.weight"},
    {"key_norm", "mlp_res_norm.weight"},
};
const HuggingFaceNames kAtOutput = {
    {"input_norm", "model.norm.weight"},
    {"pseudo_query", "model.output_attn_res_proj.weight"},
    {"key_norm", "model.output_attn_res_norm.weight"},
    {"head", "lm_head.weight"},
};

HuggingFaceNames with_layers(HuggingFaceNames names, const std::vector<LayerKind>& kinds) {
  for (const LayerKind& kind : kinds) {
    names.insert(kind.hugging_face.begin(), kind.hugging_face.end());
  }
  return names;
}

constexpr std::string_view kWeight = ".weight";

// Of a map, by the name of its weight.
std::string map_name(const std::string& weight) {
  return weight.substr(0, weight.size() - kWeight.size());
}

// The name as a list has it; empty where other programs do not have the role.
std::string listed_name(int site, const std::string& role, int sublayers) {
  static const HuggingFaceNames at_attention = with_layers(kAtAttention, attention_kinds()),
                                at_feed_forward = with_layers(kAtFeedForward, feed_forward_kinds());
  if (site == kEmbeddingSite) return "";
  const HuggingFaceNames& names = site == sublayers ? kAtOutput
                                  : site % 2 == 0   ? at_attention
                                                    : at_feed_forward;
  if (const std::string of = map_of_low_rank(role); of != role) {
    const auto name = names.find(of);
    return name == names.end()
               ? ""
               : map_name(name->second) + role.substr(of.size()) + std::string(kWeight);
  }
  const auto name = names.find(role);
  return name == names.end() ? "" : name->second;
}

}  // namespace

std::string map_of_low_rank(const std::string& role) {
  for (const std::string_view low_rank : {kLowRankIn, kLowRankOut}) {
    if (role.ends_with(low_rank)) return role.substr(0, role.size() - low_rank.size());
  }
  return role;
}

std::string module_name(int site, const std::string& role, int sublayers) {
  Parameter map;
  map.site = site;
  map.role = role;
  return map_name(hugging_face_name(map, sublayers));
}

std::string hugging_face_name(const Parameter& parameter, int sublayers, int64_t expert) {
  const int site = parameter.site;
  if (parameter.kind == ParameterKind::embedding) return "model.embed_tokens.weight";
  if (site == kEmbeddingSite) return "model.depth_mixing." + parameter.role;
  const std::string listed = listed_name(site, parameter.role, sublayers);
  if (site == sublayers) {
    return listed.empty() ? "model.output_depth_mixing." + parameter.role : listed;
  }
  const std::string layer = fmt::format("model.layers.{}.", site / 2);
  if (!listed.empty()) return layer + fmt::format(fmt::runtime(listed), expert);
  const std::string half = layer + (site % 2 == 0 ? "self_attention_" : "mlp_");
  const bool says_so = parameter.role.starts_with(kMixersRole);
  return half + (says_so ? "" : kMixersRole) + parameter.role;
}

at::Tensor StoredTensor::view(const at::Tensor& parameter) const {
  return (expert < 0 ? parameter : parameter.select(0, expert)).view(shape);
}

std::vector<StoredTensor> stored_tensors(const Parameter& parameter, int sublayers) {
  std::vector<int64_t> shape = parameter.tensor.sizes().vec();
  const bool is_stack_of_experts =
      listed_name(parameter.site, parameter.role, sublayers).find("{}") != std::string::npos;
  if (!is_stack_of_experts) {
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
