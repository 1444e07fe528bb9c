#include "attnres/formats/gguf_layouts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attnres/depth/mechanisms/block_attn_res.h"
#include "attnres/formats/architectures.h"
#include "attnres/formats/gguf_latent.h"
#include "attnres/formats/gguf_llama.h"
#include "attnres/formats/gguf_softmax_experts.h"
#include "attnres/formats/llama_family.h"
#include "attnres/formats/llama_misfit.h"
#include "attnres/layers/experts.h"
#include "attnres/layers/latent_attention.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

const std::vector<GgufLayout>& layouts() {
  static const std::vector<GgufLayout> all = [] {
    std::vector<GgufLayout> layouts = gguf_llama_layouts();
    for (GgufLayout& layout : gguf_softmax_experts_layouts()) layouts.push_back(std::move(layout));
    for (GgufLayout& layout : gguf_latent_layouts()) layouts.push_back(std::move(layout));
    return layouts;
  }();
  return all;
}

const GgufLayout& layout_named(const std::string& name) {
  const auto found = std::find_if(layouts().begin(), layouts().end(),
                                  [&](const GgufLayout& layout) { return name == layout.name; });
  require(found != layouts().end(), "GGUF: no architecture is called {}", name);
  return *found;
}

// That llama.cpp computes the depth mixing.
void check_mixing(const ModelConfig& config) {
  if (config.is_residual()) return;
  const DepthMixing& mixing = config.depth_mixing;
  require(
      mixing.settings<AttnResSettings>() == nullptr,
      "model.depth_mixing.type attn_res: llama.cpp has no Full AttnRes, where each sublayer is a "
      "block; it computes block_attn_res with an even block_size");
  const auto* block = mixing.settings<BlockAttnResSettings>();
  require(block != nullptr,
          "model.depth_mixing.type {}: llama.cpp computes residual and block_attn_res only",
          mixing.name());
  require(block->block_size % 2 == 0,
          "model.depth_mixing.block_size {} (sublayers): llama.cpp's blocks are whole Transformer "
          "layers, of two sublayers each",
          block->block_size);
  const auto arm = setting_of_an_arm(*block, config.mixer_shape());
  if (!arm) return;
  fail("model.depth_mixing.{} {}: llama.cpp computes only {}{}", arm->key, arm->value,
       arm->of_plain,
       arm->key == "norm_eps" ? " (--approximate exports with it and says what that changes)" : "");
}

// Which of Llama's relatives a model with grouped-query attention is.
std::string llama_name(const ModelConfig& config) {
  require(config.is_residual(),
          "model.depth_mixing.type block_attn_res: llama.cpp computes it with delta and latent "
          "attention only, and this model's is grouped_query");
  if (has_softmax_experts(config)) return softmax_experts_name(config);
  const auto& experts = config.settings<ExpertsSettings>();
  require(
      experts.count == 0,
      "model.experts.scores {}: llama.cpp computes only softmax beside grouped_query attention; "
      "write safetensors",
      experts.scores);
  require(!config.activation.is_situ(),
          "model.activation.type {}: llama.cpp computes silu with grouped_query attention; write "
          "safetensors",
          config.activation.type);
  const std::string type = llama_family_type(config);
  require(!type.empty(), "{}, and llama.cpp computes no other; write safetensors",
          why_not_llama_family(config));
  require(type != "mistral",
          "model.attention sliding_window: llama.cpp computes Mistral as Llama, without a window; "
          "write safetensors. A model that sees no more than its window at once is the same "
          "without it: set sliding_window to null in its config.json");
  return type == "gemma3_text" ? "gemma3" : type;
}

// Whether the architecture kimi-linear has everything that the model has.
bool llama_cpp_reads_as_kimi_linear(const ModelConfig& config) {
  const auto& experts = config.settings<ExpertsSettings>();
  return is_without_k3_parts(config) && config.settings<LatentAttentionSettings>().q_rank == 0 &&
         (experts.count == 0 || experts.shared > 0);
}

std::string name_of(const ModelConfig& config) {
  if (has_llama_attention(config)) {
    // Whatever its settings, llama.cpp has no Block AttnRes here.
    if (config.depth_mixing.settings<BlockAttnResSettings>() == nullptr) check_mixing(config);
    return llama_name(config);
  }
  if (has_deepseek_layers(config)) return "deepseek2";
  return llama_cpp_reads_as_kimi_linear(config) ? "kimi-linear" : "kimi-k3";
}

// Other files are of the architecture of their models.
void require_model(const GgufFile& file) {
  const std::string type = file.text("general.type", "model");
  const bool is_adapter = type == "adapter";
  require(type == "model", "{}: is no model: its general.type is {}{}", file.path(), one_line(type),
          is_adapter          ? ", what a LoRA changes of a model; merge it into that one first, "
                                "llama-export-lora -m MODEL --lora FILE -o OUT"
          : type == "imatrix" ? ", statistics by which llama-quantize rounds"
          : type == "mmproj"
              ? ", the part of a model that sees or hears; name the text model's file"
              : "");
  require(!file.names().empty(),
          "{}: has no tensors: it is a vocabulary alone, or what was left of a conversion; name "
          "the model's file",
          file.path());
}

}  // namespace

const GgufLayout& gguf_layout(const ModelConfig& config) {
  const GgufLayout& layout = layout_named(name_of(config));
  layout.check(config);
  check_mixing(config);
  return layout;
}

const GgufLayout& gguf_layout(const GgufFile& file) {
  require_model(file);
  const std::string name = file.text("general.architecture", "");
  std::vector<std::string> known;
  for (const GgufLayout& layout : layouts()) {
    if (name == layout.name) return layout;
    known.emplace_back(layout.name);
  }
  fail("{}: general.architecture is '{}'; attnres reads {}", file.path(), one_line(name),
       fmt::join(known, ", "));
}

}  // namespace attnres
