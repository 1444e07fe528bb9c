#include "attnres/formats/gguf_parts.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <utility>

#include "attnres/formats/architectures.h"
#include "attnres/formats/gguf_rope.h"

namespace attnres {
namespace {

using PartTensors = std::vector<at::Tensor>;

// A pseudo-query and its key norm's gain, as their product; of site 0, which has neither, zeros.
GgufPart score_part(const std::string& name, int site, int64_t width) {
  const auto exact = GgufPart::Storage::exact;
  if (site == 0) return {name, {}, exact, [=](const PartTensors&) { return at::zeros({width}); }};
  return {.name = name,
          .roles = {"key_norm", "pseudo_query"},
          .storage = exact,
          .make = [](const PartTensors& of) { return at::mul(of[0], of[1]); },
          .read =
              [](const at::Tensor& stored, const PartTensors& of) {
                of[0].fill_(1);
                of[1].copy_(stored);
              }};
}

}  // namespace

std::vector<GgufSitePart> gguf_parts(const ModelConfig& config, GgufArchitecture architecture) {
  constexpr auto kExact = GgufPart::Storage::exact;
  const bool attn_res = layers_in_block(config) > 0;
  const bool is_kimi =
      architecture == GgufArchitecture::kimi_linear || architecture == GgufArchitecture::kimi_k3;
  const int output = config.sublayers();
  std::vector<GgufSitePart> parts;
  const auto add = [&](int site, GgufPart part) { parts.push_back({site, std::move(part)}); };
  add(kEmbeddingSite, {"token_embd.weight", {"token_embedding"}});
  add(output, {"output_norm.weight", {"input_norm"}, kExact});
  if (attn_res) add(output, score_part("output_res_score.weight", output, config.width));
  if (!config.tie_embeddings) {
    add(output, {"output.weight", {"head"}});
  } else if (is_kimi) {  // others take the embedding without a head
    add(kEmbeddingSite, {"output.weight", {"token_embedding"}});
  }
  if (config.rope_scaling.type == "llama3") {
    add(kEmbeddingSite,
        {kGgufRopeFactors, {}, kExact, [factors = gguf_rope_factors(config)](const PartTensors&) {
           return factors;
         }});
  }
  for (int site = 0; site < output; ++site) {
    const std::string layer = fmt::format("blk.{}.", site / 2);
    const std::string half = layer + (site % 2 == 0 ? "attn" : "ffn");
    const bool is_after_attention = architecture == GgufArchitecture::gpt_oss && site % 2 == 1;
    add(site, {is_after_attention ? layer + "post_attention_norm.weight" : half + "_norm.weight",
               {"input_norm"},
               kExact});
    if (attn_res) add(site, score_part(half + "_res_score.weight", site, config.width));
    for (GgufPart& part : gguf_layer_parts(config, site, architecture)) {
      part.name.insert(0, layer);
      add(site, std::move(part));
    }
    if (config.output_norm) {
      const char* of_half = site % 2 == 0 ? "attention" : "ffw";
      add(site, {fmt::format("{}post_{}_norm.weight", layer, of_half), {"output_norm"}, kExact});
    }
  }
  return parts;
}

}  // namespace attnres
