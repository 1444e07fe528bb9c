#include "attnres/formats/gguf_model.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <set>

#include "attnres/depth/mechanisms/block_attn_res.h"
#include "attnres/formats/architectures.h"
#include "attnres/formats/gguf_parts.h"
#include "attnres/formats/llama_family.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// llama.cpp's numbers for what most of a file is stored as.
uint32_t file_type(GgufType type) {
  switch (type) {
    case GgufType::f32:
      return 0;
    case GgufType::f16:
      return 1;
    case GgufType::q4_0:
      return 2;
    case GgufType::q8_0:
      return 7;
    case GgufType::bf16:
      return 32;
  }
  fail("GGUF: unknown type {}", static_cast<uint32_t>(type));
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
  BlockAttnResSettings plain(config.mixer_shape());
  plain.block_size = block->block_size;
  plain.query_init = block->query_init;
  const Json computed = write_config(plain), given = write_config(*block);
  for (const auto& [key, value] : given.items()) {
    require(value == computed.at(key), "model.depth_mixing.{} {}: llama.cpp computes only {}", key,
            value.dump(), computed.at(key).dump());
  }
}

// Whether the architecture kimi-linear has everything that the model has.
bool llama_cpp_reads_as_kimi_linear(const ModelConfig& config) {
  return is_without_k3_parts(config) && config.latent_attention.q_rank == 0 &&
         (config.experts.count == 0 || config.experts.shared > 0);
}

void check_llama(const ModelConfig& config) {
  require(config.is_residual(),
          "model.depth_mixing.type block_attn_res: llama.cpp computes it with delta and latent "
          "attention only, and this model's is grouped_query");
  require(
      config.experts.count == 0,
      "model.experts: llama.cpp computes these experts with delta and latent attention only, and "
      "this model's is grouped_query");
  require(!config.activation.is_situ(),
          "model.activation.type {}: llama.cpp computes silu with grouped_query attention",
          config.activation.type);
  const std::string type = llama_family_type(config);
  require(type == "llama" && config.rope_scaling.is_none(),
          "GGUF is written of Llama without scaled positions, and this model is {}; write "
          "safetensors (--format huggingface), which llama.cpp's convert_hf_to_gguf.py reads",
          type.empty()      ? "of no architecture that llama.cpp has"
          : type == "llama" ? "Llama with them"
                            : type);
}

void check_kimi(const ModelConfig& config) {
  require(!has_gemma_parts(config),
          "model.output_norm, embedding_scale or gelu_tanh: llama.cpp computes them only with "
          "grouped_query attention");
  require(
      has_kimi_attention(config),
      "model.attention: llama.cpp computes grouped_query in every layer, or some layers of each "
      "of delta and latent; this model has another mixture");
  require(config.delta_attention.heads == config.heads,
          "model.delta_attention.heads {}: llama.cpp computes as many as latent attention has, {}",
          config.delta_attention.heads, config.heads);
  require(config.experts.groups == 1 && config.experts.latent_norm,
          "model.experts.groups {} and latent_norm {}: llama.cpp computes 1 and true; write "
          "safetensors",
          config.experts.groups, config.experts.latent_norm);
  require(
      !config.latent_attention.rotary && config.latent_attention.score_scale == 0,
      "model.latent_attention.rotary or score_scale: llama.cpp computes latent attention beside "
      "delta attention without them; write safetensors");
  require(config.experts.renormalize,
          "model.experts.renormalize false: llama.cpp always divides these experts' weights by "
          "their sum; write safetensors");
}

// The first of the architectures that can. Throws Error saying what none of them computes.
GgufArchitecture architecture_of(const ModelConfig& config) {
  if (has_llama_attention(config)) {
    check_mixing(config);
    check_llama(config);
    return GgufArchitecture::llama;
  }
  check_kimi(config);
  check_mixing(config);
  return llama_cpp_reads_as_kimi_linear(config) ? GgufArchitecture::kimi_linear
                                                : GgufArchitecture::kimi_k3;
}

// The tensors of a file, made of the model's parameters.
class GgufTensors {
 public:
  GgufTensors(const Transformer& model, GgufType type) : model_(model), type_(type) {}

  void add(const GgufSitePart& placed) {
    const GgufPart& part = placed.part;
    std::vector<at::Tensor> of, without_data;
    for (const std::string& role : part.roles) {
      of.push_back(take(placed.site, role));
      without_data.push_back(of.back().to(at::kMeta));
    }
    const auto made = [make = part.make](const std::vector<at::Tensor>& tensors) {
      return make ? make(tensors) : tensors[0];
    };
    const std::vector<int64_t> shape = made(without_data).sizes().vec();
    GgufType type = part.storage == GgufPart::Storage::exact ? GgufType::f32 : type_;
    if (has_blocks(weight_format(type)) && shape.back() % kPackedBlock != 0) type = GgufType::f16;
    tensors_.push_back({part.name, shape, type, [=] { return made(of); }});
  }

  // Throws Error naming a parameter that is in no tensor.
  std::vector<GgufTensor> all() const {
    for (const Parameter& parameter : model_.parameters().all()) {
      require(used_.contains(&parameter),
              "GGUF: llama.cpp has no place for the parameter {} of site {}", parameter.role,
              parameter.site);
    }
    return tensors_;
  }

 private:
  at::Tensor take(int site, const std::string& role) {
    const Parameter* parameter = model_.parameters().find(site, role);
    require(parameter != nullptr, "GGUF: the model has no parameter {} at site {}", role, site);
    used_.insert(parameter);
    return parameter->tensor.detach();
  }

  const Transformer& model_;
  GgufType type_;
  std::set<const Parameter*> used_;
  std::vector<GgufTensor> tensors_;
};

std::vector<GgufTensor> tensors_of(const Transformer& model, GgufType type) {
  GgufTensors tensors(model, type);
  for (const GgufSitePart& part : gguf_parts(model.config(), architecture_of(model.config()))) {
    tensors.add(part);
  }
  return tensors.all();
}

// The keys of one architecture, whose name stands before each.
class Keys {
 public:
  explicit Keys(std::string architecture) : architecture_(std::move(architecture)) {}

  void add(const std::string& key, int64_t value) { add_value(key, static_cast<uint32_t>(value)); }
  void add(const std::string& key, double value) { add_value(key, static_cast<float>(value)); }
  void add_value(const std::string& key, GgufValue value) {
    metadata_.emplace_back(architecture_ + "." + key, std::move(value));
  }

  const std::string& architecture() const { return architecture_; }
  const GgufMetadata& metadata() const { return metadata_; }

 private:
  std::string architecture_;
  GgufMetadata metadata_;
};

void add_kimi_attention(Keys& keys, const ModelConfig& config) {
  std::vector<int32_t> kv_heads;  // 0 for delta attention; latent attention has one latent
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    kv_heads.push_back(config.attention_of(layer) == kDelta ? 0 : 1);
  }
  keys.add_value("attention.head_count_kv", kv_heads);
  const DeltaAttentionSettings& delta = config.delta_attention;
  keys.add("ssm.conv_kernel", delta.conv_width);
  keys.add("kda.head_dim", delta.head_width);
  if (delta.gate_lower_bound != 0) keys.add("kda.gate_lower_bound", delta.gate_lower_bound);
  const LatentAttentionSettings& latent = config.latent_attention;
  if (latent.q_rank > 0) keys.add("attention.q_lora_rank", latent.q_rank);
  keys.add("attention.kv_lora_rank", latent.kv_rank);
  keys.add("attention.key_length", latent.kv_rank + latent.shared_key_width);
  keys.add("attention.value_length", latent.kv_rank);
  keys.add("attention.key_length_mla", latent.key_width + latent.shared_key_width);
  keys.add("attention.value_length_mla", latent.value_width);
  keys.add("rope.dimension_count", latent.shared_key_width);
}

void add_kimi_experts(Keys& keys, const ModelConfig& config) {
  const ExpertsSettings& experts = config.experts;
  const bool any = experts.count > 0;
  keys.add("leading_dense_block_count", any ? experts.dense_layers : config.layers);
  keys.add("expert_count", experts.count);
  keys.add("expert_used_count", any ? experts.chosen : 0);
  keys.add("expert_shared_count", any ? experts.shared : 0);
  keys.add("expert_feed_forward_length", any ? experts.width : 0);
  keys.add_value("expert_gating_func", kGgufSigmoidRouting);
  keys.add("expert_weights_scale", experts.scaling);
  keys.add_value("expert_weights_norm", true);
  if (any && experts.latent_width > 0) keys.add("expert_latent_length", experts.latent_width);
}

void add_k3(Keys& keys, const ModelConfig& config) {
  const bool situ = config.activation.is_situ();
  keys.add("attn_res.block_size", layers_in_block(config));
  keys.add("activation.situ_beta", situ ? config.activation.beta : kGgufBetaOfSilu);
  keys.add("activation.situ_linear_beta", situ ? config.activation.linear_beta : 0.0);
}

GgufMetadata metadata_of(const Transformer& model, int64_t context, GgufType type) {
  const ModelConfig& config = model.config();
  const GgufArchitecture architecture = architecture_of(config);
  Keys keys(gguf_architecture(config));
  keys.add("vocab_size", model.vocab_size());
  keys.add("context_length", context);
  keys.add("embedding_length", config.width);
  keys.add("block_count", config.layers);
  keys.add("feed_forward_length", config.ffn_width);
  keys.add("attention.layer_norm_rms_epsilon", config.norm_eps);
  keys.add("attention.head_count", config.heads);
  if (architecture == GgufArchitecture::llama) {
    keys.add("attention.head_count_kv", config.kv_heads);
    keys.add("attention.key_length", config.head_width);
    keys.add("attention.value_length", config.head_width);
    keys.add("rope.dimension_count", config.head_width);
    keys.add("rope.freq_base", config.rope_theta);
  } else {
    add_kimi_attention(keys, config);
    add_kimi_experts(keys, config);
  }
  if (architecture == GgufArchitecture::kimi_k3) add_k3(keys, config);

  GgufMetadata metadata = {{"general.architecture", keys.architecture()},
                           {"general.file_type", file_type(type)}};
  if (has_blocks(weight_format(type))) {
    metadata.emplace_back("general.quantization_version", uint32_t{2});
  }
  metadata.insert(metadata.end(), keys.metadata().begin(), keys.metadata().end());
  return metadata;
}

}  // namespace

std::string gguf_architecture(const ModelConfig& config) {
  return gguf_name(architecture_of(config));
}

void save_gguf(const Transformer& model, const std::filesystem::path& path, int64_t context,
               const GgufMetadata& tokenizer, GgufType type) {
  GgufMetadata metadata = metadata_of(model, context, type);
  metadata.insert(metadata.end(), tokenizer.begin(), tokenizer.end());
  write_gguf(path, metadata, tensors_of(model, type));
}

}  // namespace attnres
