#include "attnres/formats/gguf_model.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <set>

#include "attnres/depth/mechanisms/block_attn_res.h"
#include "attnres/formats/architectures.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr const char *kLlama = "llama", *kKimiLinear = "kimi-linear", *kKimiK3 = "kimi-k3";
constexpr uint32_t kSigmoidRouting = 2;
constexpr float kSituBetaOfSilu = 1 << 16;

// llama.cpp's numbers for what most of a file is stored as.
uint32_t file_type(GgufType type) {
  switch (type) {
    case GgufType::f32:
      return 0;
    case GgufType::f16:
      return 1;
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
}

void check_kimi(const ModelConfig& config) {
  require(
      has_kimi_attention(config),
      "model.attention: llama.cpp computes grouped_query in every layer, or some layers of each "
      "of delta and latent; this model has another mixture");
  require(config.delta_attention.heads == config.heads,
          "model.delta_attention.heads {}: llama.cpp computes as many as latent attention has, {}",
          config.delta_attention.heads, config.heads);
  require(config.experts.renormalize,
          "model.experts.renormalize false: llama.cpp always divides these experts' weights by "
          "their sum; write safetensors");
}

// The tensors of a file, made of the model's parameters.
class Tensors {
 public:
  using Change = std::function<at::Tensor(const at::Tensor&)>;
  using Combination = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

  Tensors(const Transformer& model, GgufType type) : model_(model), type_(type) {}

  // Stored as the type asked for.
  void add_matrix(const std::string& name, int site, const std::string& role,
                  const Change& change = {}) {
    add(name, type_, take(site, role), change);
  }
  // Stored as float32.
  void add_exact(const std::string& name, int site, const std::string& role,
                 const Change& change = {}) {
    add(name, GgufType::f32, take(site, role), change);
  }
  // Made of two parameters.
  void add_matrix(const std::string& name, int site, const std::string& role,
                  const std::string& second, const Combination& combine) {
    add(name, type_, take(site, role), combine, take(site, second));
  }
  void add_exact(const std::string& name, int site, const std::string& role,
                 const std::string& second, const Combination& combine) {
    add(name, GgufType::f32, take(site, role), combine, take(site, second));
  }
  void add_zeros(const std::string& name, int64_t size) {
    tensors_.push_back({name, {size}, GgufType::f32, [size] { return at::zeros({size}); }});
  }

  bool has(int site, const std::string& role) const {
    return model_.parameters().find(site, role) != nullptr;
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

  // The same function, of tensors without data, gives the shape.
  template <class Function, class... More>
  void add(const std::string& name, GgufType type, const at::Tensor& tensor,
           const Function& function, const More&... more) {
    std::vector<int64_t> shape = tensor.sizes().vec();
    if (function) shape = function(tensor.to(at::kMeta), more.to(at::kMeta)...).sizes().vec();
    if (type == GgufType::q8_0 && shape.back() % kGgufBlock != 0) type = GgufType::f16;
    tensors_.push_back(
        {name, shape, type, [=] { return function ? function(tensor, more...) : tensor; }});
  }

  const Transformer& model_;
  GgufType type_;
  std::set<const Parameter*> used_;
  std::vector<GgufTensor> tensors_;
};

// The rows of a query or key map: of a head, c and c + K/2 become 2c and 2c + 1.
at::Tensor interleave_pairs(const at::Tensor& weight, int64_t heads) {
  return weight.view({heads, 2, weight.size(0) / heads / 2, weight.size(1)})
      .transpose(1, 2)
      .reshape(weight.sizes());
}

void add_grouped_query(Tensors& tensors, const std::string& layer, int site,
                       const ModelConfig& config) {
  const auto interleaved = [](int64_t heads) {
    return [heads](const at::Tensor& weight) { return interleave_pairs(weight, heads); };
  };
  tensors.add_matrix(layer + "attn_q.weight", site, "q_proj", interleaved(config.heads));
  tensors.add_matrix(layer + "attn_k.weight", site, "k_proj", interleaved(config.kv_heads));
  tensors.add_matrix(layer + "attn_v.weight", site, "v_proj");
  tensors.add_matrix(layer + "attn_output.weight", site, "o_proj");
}

void add_delta(Tensors& tensors, const std::string& layer, int site,
               const std::string& architecture) {
  const bool k3 = architecture == kKimiK3;
  for (const char* of : {"q", "k", "v"}) {
    tensors.add_matrix(fmt::format("{}attn_{}.weight", layer, of), site,
                       fmt::format("{}_proj", of));
    tensors.add_exact(fmt::format("{}ssm_conv1d_{}.weight", layer, of), site,
                      fmt::format("{}_conv1d", of), [](const at::Tensor& kernels) {
                        return kernels.view({1, kernels.size(0), 1, kernels.size(-1)});
                      });
  }
  tensors.add_matrix(layer + "ssm_f_a.weight", site, "f_a_proj");
  tensors.add_matrix(layer + "ssm_f_b.weight", site, "f_b_proj");
  tensors.add_exact(layer + "ssm_dt.bias", site, "dt_bias");
  tensors.add_exact(layer + "ssm_a", site, "A_log", [k3](const at::Tensor& A_log) {
    const at::Tensor decay = A_log.exp().neg();
    return k3 ? decay : decay.view({1, 1, A_log.size(0), 1});
  });
  tensors.add_matrix(layer + "ssm_beta.weight", site, "b_proj");
  if (tensors.has(site, "g_proj")) {
    tensors.add_matrix(layer + "ssm_g.weight", site, "g_proj");
  } else if (k3) {
    tensors.add_matrix(
        layer + "ssm_g.weight", site, "g_b_proj", "g_a_proj",
        [](const at::Tensor& outer, const at::Tensor& inner) { return at::mm(outer, inner); });
  } else {
    tensors.add_matrix(layer + "ssm_g_a.weight", site, "g_a_proj");
    tensors.add_matrix(layer + "ssm_g_b.weight", site, "g_b_proj");
  }
  tensors.add_exact(layer + "ssm_norm.weight", site, "o_norm");
  tensors.add_matrix(layer + "attn_output.weight", site, "o_proj");
}

void add_latent(Tensors& tensors, const std::string& layer, int site, const ModelConfig& config) {
  const LatentAttentionSettings& settings = config.latent_attention;
  if (settings.q_rank > 0) {
    tensors.add_matrix(layer + "attn_q_a.weight", site, "q_a_proj");
    tensors.add_exact(layer + "attn_q_a_norm.weight", site, "q_a_layernorm");
    tensors.add_matrix(layer + "attn_q_b.weight", site, "q_b_proj");
  } else {
    tensors.add_matrix(layer + "attn_q.weight", site, "q_proj");
  }
  tensors.add_matrix(layer + "attn_kv_a_mqa.weight", site, "kv_a_proj_with_mqa");
  tensors.add_exact(layer + "attn_kv_a_norm.weight", site, "kv_a_layernorm");
  const int64_t heads = config.heads, key = settings.key_width, value = settings.value_width;
  const auto of_head = [=](const at::Tensor& kv_b) {
    return kv_b.view({heads, key + value, kv_b.size(1)});
  };
  tensors.add_matrix(layer + "attn_k_b.weight", site, "kv_b_proj", [=](const at::Tensor& kv_b) {
    return of_head(kv_b).narrow(1, 0, key).transpose(1, 2);
  });
  tensors.add_matrix(layer + "attn_v_b.weight", site, "kv_b_proj",
                     [=](const at::Tensor& kv_b) { return of_head(kv_b).narrow(1, key, value); });
  if (settings.output_gate) tensors.add_matrix(layer + "attn_gate.weight", site, "g_proj");
  tensors.add_matrix(layer + "attn_output.weight", site, "o_proj");
}

void add_dense(Tensors& tensors, const std::string& layer, int site) {
  tensors.add_matrix(layer + "ffn_gate.weight", site, "gate_proj");
  tensors.add_matrix(layer + "ffn_up.weight", site, "up_proj");
  tensors.add_matrix(layer + "ffn_down.weight", site, "down_proj");
}

void add_experts(Tensors& tensors, const std::string& layer, int site,
                 const ExpertsSettings& settings) {
  tensors.add_exact(layer + "ffn_gate_inp.weight", site, "gate");
  tensors.add_exact(layer + "exp_probs_b.bias", site, "e_score_correction_bias");
  tensors.add_matrix(layer + "ffn_gate_exps.weight", site, "w1");
  tensors.add_matrix(layer + "ffn_down_exps.weight", site, "w2");
  tensors.add_matrix(layer + "ffn_up_exps.weight", site, "w3");
  if (settings.shared > 0) {
    tensors.add_matrix(layer + "ffn_gate_shexp.weight", site, "shared_w1");
    tensors.add_matrix(layer + "ffn_down_shexp.weight", site, "shared_w2");
    tensors.add_matrix(layer + "ffn_up_shexp.weight", site, "shared_w3");
  }
  if (settings.latent_width > 0) {
    tensors.add_matrix(layer + "ffn_routed_down.weight", site, "routed_expert_down_proj");
    tensors.add_exact(layer + "ffn_routed_norm.weight", site, "routed_expert_norm");
    tensors.add_matrix(layer + "ffn_routed_up.weight", site, "routed_expert_up_proj");
  }
}

void add_score(Tensors& tensors, const std::string& name, int site, int64_t width) {
  if (site == 0) return tensors.add_zeros(name, width);
  tensors.add_exact(
      name, site, "key_norm", "pseudo_query",
      [](const at::Tensor& gain, const at::Tensor& query) { return at::mul(gain, query); });
}

std::vector<GgufTensor> tensors_of(const Transformer& model, GgufType type) {
  const ModelConfig& config = model.config();
  const std::string architecture = gguf_architecture(config);
  const bool attn_res = layers_in_block(config) > 0;
  const int output = model.sublayers();
  Tensors tensors(model, type);
  tensors.add_matrix("token_embd.weight", kEmbeddingSite, "token_embedding");
  tensors.add_exact("output_norm.weight", output, "input_norm");
  if (attn_res) add_score(tensors, "output_res_score.weight", output, config.width);
  if (!config.tie_embeddings) {
    tensors.add_matrix("output.weight", output, "head");
  } else if (architecture != kLlama) {  // which takes the embedding where there is no head
    tensors.add_matrix("output.weight", kEmbeddingSite, "token_embedding");
  }
  for (int attention = 0; attention < output; attention += 2) {
    const int feed_forward = attention + 1, index = attention / 2;
    const std::string layer = fmt::format("blk.{}.", index), &kind = config.attention_of(index);
    tensors.add_exact(layer + "attn_norm.weight", attention, "input_norm");
    if (attn_res) add_score(tensors, layer + "attn_res_score.weight", attention, config.width);
    if (kind == kGroupedQuery) add_grouped_query(tensors, layer, attention, config);
    if (kind == kDelta) add_delta(tensors, layer, attention, architecture);
    if (kind == kLatent) add_latent(tensors, layer, attention, config);

    tensors.add_exact(layer + "ffn_norm.weight", feed_forward, "input_norm");
    if (attn_res) add_score(tensors, layer + "ffn_res_score.weight", feed_forward, config.width);
    if (config.has_experts(index)) {
      add_experts(tensors, layer, feed_forward, config.experts);
    } else {
      add_dense(tensors, layer, feed_forward);
    }
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
  keys.add_value("expert_gating_func", kSigmoidRouting);
  keys.add("expert_weights_scale", experts.scaling);
  keys.add_value("expert_weights_norm", true);
  if (any && experts.latent_width > 0) keys.add("expert_latent_length", experts.latent_width);
}

void add_k3(Keys& keys, const ModelConfig& config) {
  const bool situ = config.activation.is_situ();
  keys.add("attn_res.block_size", layers_in_block(config));
  keys.add("activation.situ_beta", situ ? config.activation.beta : kSituBetaOfSilu);
  keys.add("activation.situ_linear_beta", situ ? config.activation.linear_beta : 0.0);
}

GgufMetadata metadata_of(const Transformer& model, int64_t context, GgufType type) {
  const ModelConfig& config = model.config();
  Keys keys(gguf_architecture(config));
  keys.add("vocab_size", model.vocab_size());
  keys.add("context_length", context);
  keys.add("embedding_length", config.width);
  keys.add("block_count", config.layers);
  keys.add("feed_forward_length", config.ffn_width);
  keys.add("attention.layer_norm_rms_epsilon", config.norm_eps);
  keys.add("attention.head_count", config.heads);
  if (keys.architecture() == kLlama) {
    keys.add("attention.head_count_kv", config.kv_heads);
    keys.add("rope.dimension_count", config.width / config.heads);
    keys.add("rope.freq_base", config.rope_theta);
  } else {
    add_kimi_attention(keys, config);
    add_kimi_experts(keys, config);
  }
  if (keys.architecture() == kKimiK3) add_k3(keys, config);

  GgufMetadata metadata = {{"general.architecture", keys.architecture()},
                           {"general.file_type", file_type(type)}};
  if (type == GgufType::q8_0) metadata.emplace_back("general.quantization_version", uint32_t{2});
  metadata.insert(metadata.end(), keys.metadata().begin(), keys.metadata().end());
  return metadata;
}

}  // namespace

std::string gguf_architecture(const ModelConfig& config) {
  if (has_llama_attention(config)) {
    check_mixing(config);
    check_llama(config);
    return kLlama;
  }
  check_kimi(config);
  check_mixing(config);
  return llama_cpp_reads_as_kimi_linear(config) ? kKimiLinear : kKimiK3;
}

void save_gguf(const Transformer& model, const std::filesystem::path& path, int64_t context,
               const GgufMetadata& tokenizer, GgufType type) {
  GgufMetadata metadata = metadata_of(model, context, type);
  metadata.insert(metadata.end(), tokenizer.begin(), tokenizer.end());
  write_gguf(path, metadata, tensors_of(model, type));
}

}  // namespace attnres
