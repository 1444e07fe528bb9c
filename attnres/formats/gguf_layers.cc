#include "attnres/formats/gguf_layers.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <fmt/core.h>

#include <map>

#include "attnres/formats/paired_rows.h"
#include "attnres/layers/attention.h"
#include "attnres/layers/delta_attention.h"
#include "attnres/layers/experts.h"
#include "attnres/layers/feed_forward.h"
#include "attnres/layers/latent_attention.h"
#include "attnres/model/layer_kind.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using PartTensors = std::vector<at::Tensor>;
constexpr auto kMatrix = GgufPart::Storage::matrix;
constexpr auto kExact = GgufPart::Storage::exact;

// A map that the file holds with rotary pairs side by side.
GgufPart side_by_side_part(const std::string& name, const std::string& role,
                           const PairedRows& rows) {
  return {.name = name,
          .roles = {role},
          .make = [rows](const PartTensors& of) { return rows.side_by_side(of[0]); },
          .read = [rows](const at::Tensor& stored,
                         const PartTensors& of) { of[0].copy_(rows.in_halves(stored)); },
          .reads_rows = true};
}

std::vector<GgufPart> grouped_query_parts(const ModelConfig& config,
                                          GgufArchitecture architecture) {
  const auto& settings = config.settings<GroupedQuerySettings>();
  // Others keep the pairs of rotary positions in halves, as here.
  const bool side_by_side =
      architecture == GgufArchitecture::llama || architecture == GgufArchitecture::smollm3;
  const auto rotary_map = [&](const std::string& map, int64_t heads) -> GgufPart {
    const std::string name = "attn_" + map + ".weight", role = map + "_proj";
    if (!side_by_side) return {.name = name, .roles = {role}};
    return side_by_side_part(name, role, {heads, /*before=*/0, config.head_width / 2});
  };
  std::vector<GgufPart> parts = {rotary_map("q", config.heads),
                                 rotary_map("k", config.kv_heads),
                                 {.name = "attn_v.weight", .roles = {"v_proj"}},
                                 {.name = "attn_output.weight", .roles = {"o_proj"}}};
  if (settings.output_bias) parts.push_back({"attn_output.bias", {"o_bias"}, kExact});
  if (settings.sinks) parts.push_back({"attn_sinks.weight", {"sinks"}, kExact});
  if (settings.qkv_bias) {
    for (const std::string map : {"q", "k", "v"}) {
      parts.push_back({"attn_" + map + ".bias", {map + "_bias"}, kExact});
    }
  }
  if (settings.qk_norm) {
    for (const std::string map : {"q", "k"}) {
      parts.push_back({"attn_" + map + "_norm.weight", {map + "_layernorm"}, kExact});
    }
  }
  return parts;
}

std::vector<GgufPart> latent_parts(const ModelConfig& config, GgufArchitecture) {
  const LatentAttentionSettings& settings = config.settings<LatentAttentionSettings>();
  std::vector<GgufPart> parts;
  // A map whose last outputs, of each head, rotary positions may turn.
  const auto add_map = [&](const char* name, const char* role, int64_t of_heads, int64_t before) {
    parts.push_back(
        settings.rotary
            ? side_by_side_part(name, role, {of_heads, before, settings.shared_key_width / 2})
            : GgufPart{.name = name, .roles = {role}});
  };
  if (settings.q_rank > 0) {
    parts.push_back({"attn_q_a.weight", {"q_a_proj"}});
    parts.push_back({"attn_q_a_norm.weight", {"q_a_layernorm"}, kExact});
    add_map("attn_q_b.weight", "q_b_proj", config.heads, settings.key_width);
  } else {
    add_map("attn_q.weight", "q_proj", config.heads, settings.key_width);
  }
  add_map("attn_kv_a_mqa.weight", "kv_a_proj_with_mqa", /*of_heads=*/1, settings.kv_rank);
  parts.push_back({"attn_kv_a_norm.weight", {"kv_a_layernorm"}, kExact});
  const int64_t heads = config.heads, key = settings.key_width, value = settings.value_width;
  const auto of_head = [=](const PartTensors& kv_b) {
    return kv_b[0].view({heads, key + value, kv_b[0].size(1)});
  };
  // Views of a head's rows, into which a file's are copied too.
  const auto add_view = [&](const char* name, const auto& view) {
    parts.push_back(
        {name,
         {"kv_b_proj"},
         kMatrix,
         view,
         [=](const at::Tensor& stored, const PartTensors& kv_b) { view(kv_b).copy_(stored); }});
  };
  add_view("attn_k_b.weight", [=](const PartTensors& kv_b) {
    return of_head(kv_b).narrow(1, 0, key).transpose(1, 2);
  });
  add_view("attn_v_b.weight",
           [=](const PartTensors& kv_b) { return of_head(kv_b).narrow(1, key, value); });
  if (settings.output_gate) parts.push_back({"attn_gate.weight", {"g_proj"}});
  parts.push_back({"attn_output.weight", {"o_proj"}});
  return parts;
}

// Gives A_log, of -exp(A_log).
void read_decay(const at::Tensor& stored, const PartTensors& A_log) {
  require(stored.lt(0).all().item<bool>(), "expected negative numbers, by which states decay");
  A_log[0].copy_(stored.neg().log().view_as(A_log[0]));
}

std::vector<GgufPart> delta_parts(const ModelConfig& config, GgufArchitecture architecture) {
  const bool k3 = architecture == GgufArchitecture::kimi_k3;
  std::vector<GgufPart> parts;
  for (const char* of : {"q", "k", "v"}) {
    parts.push_back({fmt::format("attn_{}.weight", of), {fmt::format("{}_proj", of)}});
    parts.push_back({fmt::format("ssm_conv1d_{}.weight", of),
                     {fmt::format("{}_conv1d", of)},
                     kExact,
                     [](const PartTensors& kernels) {
                       return kernels[0].view({1, kernels[0].size(0), 1, kernels[0].size(-1)});
                     }});
  }
  parts.push_back({"ssm_f_a.weight", {"f_a_proj"}});
  parts.push_back({"ssm_f_b.weight", {"f_b_proj"}});
  parts.push_back({"ssm_dt.bias", {"dt_bias"}, kExact});
  parts.push_back({.name = "ssm_a",
                   .roles = {"A_log"},
                   .storage = kExact,
                   .make =
                       [k3](const PartTensors& A_log) {
                         const at::Tensor decay = A_log[0].exp().neg();
                         return k3 ? decay : decay.view({1, 1, decay.size(0), 1});
                       },
                   .read = read_decay});
  parts.push_back({"ssm_beta.weight", {"b_proj"}});
  if (config.settings<DeltaAttentionSettings>().has_full_rank_gate()) {
    parts.push_back({"ssm_g.weight", {"g_proj"}});
  } else if (k3) {
    parts.push_back(
        {"ssm_g.weight", {"g_b_proj", "g_a_proj"}, kMatrix, [](const PartTensors& maps) {
           return at::mm(maps[0], maps[1]);
         }});
  } else {
    parts.push_back({"ssm_g_a.weight", {"g_a_proj"}});
    parts.push_back({"ssm_g_b.weight", {"g_b_proj"}});
  }
  parts.push_back({"ssm_norm.weight", {"o_norm"}, kExact});
  parts.push_back({"attn_output.weight", {"o_proj"}});
  return parts;
}

std::vector<GgufPart> dense_parts(const ModelConfig&, GgufArchitecture) {
  return {{"ffn_gate.weight", {"gate_proj"}},
          {"ffn_up.weight", {"up_proj"}},
          {"ffn_down.weight", {"down_proj"}}};
}

// The router whose choice has no bias that load moves: here that is zero.
GgufPart softmax_router_part() {
  return {.name = "ffn_gate_inp.weight",
          .roles = {"gate", "e_score_correction_bias"},
          .storage = kExact,
          .make =
              [](const PartTensors& of) {
                require(of[1].is_meta() || of[1].eq(0).all().item<bool>(),
                        "e_score_correction_bias is not zero: llama.cpp chooses these experts "
                        "without it; write safetensors");
                return of[0];
              },
          .read =
              [](const at::Tensor& stored, const PartTensors& of) {
                of[0].copy_(stored.view(of[0].sizes()));
                of[1].zero_();
              }};
}

std::vector<GgufPart> softmax_experts_parts(const ExpertsSettings& settings) {
  std::vector<GgufPart> parts = {softmax_router_part(),
                                 {"ffn_gate_exps.weight", {"w1"}},
                                 {"ffn_down_exps.weight", {"w2"}},
                                 {"ffn_up_exps.weight", {"w3"}}};
  if (settings.router_bias) parts.push_back({"ffn_gate_inp.bias", {"gate_bias"}, kExact});
  if (settings.bias) {
    parts.push_back({"ffn_gate_exps.bias", {"w1_bias"}, kExact});
    parts.push_back({"ffn_down_exps.bias", {"w2_bias"}, kExact});
    parts.push_back({"ffn_up_exps.bias", {"w3_bias"}, kExact});
  }
  return parts;
}

std::vector<GgufPart> experts_parts(const ModelConfig& config, GgufArchitecture) {
  const ExpertsSettings& settings = config.settings<ExpertsSettings>();
  if (settings.has_softmax_scores()) return softmax_experts_parts(settings);
  std::vector<GgufPart> parts = {{"ffn_gate_inp.weight", {"gate"}, kExact},
                                 {"exp_probs_b.bias", {"e_score_correction_bias"}, kExact},
                                 {"ffn_gate_exps.weight", {"w1"}},
                                 {"ffn_down_exps.weight", {"w2"}},
                                 {"ffn_up_exps.weight", {"w3"}}};
  if (settings.shared > 0) {
    parts.push_back({"ffn_gate_shexp.weight", {"shared_w1"}});
    parts.push_back({"ffn_down_shexp.weight", {"shared_w2"}});
    parts.push_back({"ffn_up_shexp.weight", {"shared_w3"}});
  }
  if (settings.latent_width > 0) {
    parts.push_back({"ffn_routed_down.weight", {"routed_expert_down_proj"}});
    if (settings.latent_norm) {
      parts.push_back({"ffn_routed_norm.weight", {"routed_expert_norm"}, kExact});
    }
    parts.push_back({"ffn_routed_up.weight", {"routed_expert_up_proj"}});
  }
  return parts;
}

}  // namespace

std::vector<GgufPart> gguf_layer_parts(const ModelConfig& config, int site,
                                       GgufArchitecture architecture) {
  using Parts = std::vector<GgufPart> (*)(const ModelConfig&, GgufArchitecture);
  static const std::map<std::string, Parts> all = {{kGroupedQuery, grouped_query_parts},
                                                   {kSlidingWindow, grouped_query_parts},
                                                   {kNope, grouped_query_parts},
                                                   {kDelta, delta_parts},
                                                   {kLatent, latent_parts},
                                                   {kDense, dense_parts},
                                                   {kExperts, experts_parts}};
  const std::string& kind = layer_kind(config, site).name;
  const auto found = all.find(kind);
  require(found != all.end(), "llama.cpp's files have no {} layers; write safetensors", kind);
  return found->second(config, architecture);
}

}  // namespace attnres
