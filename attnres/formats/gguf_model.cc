#include "attnres/formats/gguf_model.h"

#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>
#include <set>

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
    case GgufType::q8_0:
      return 7;
    case GgufType::bf16:
      return 32;
  }
  fail("GGUF: unknown type {}", static_cast<uint32_t>(type));
}

// The tensors of a file, each made of a parameter of the model.
class Tensors {
 public:
  using Change = std::function<at::Tensor(const at::Tensor&)>;

  Tensors(const Transformer& model, GgufType type) : model_(model), type_(type) {}

  // Stored as the type asked for.
  void add_matrix(const std::string& name, int site, const std::string& role,
                  const Change& change = {}) {
    add(name, site, role, change, type_);
  }
  // Stored as float32.
  void add_exact(const std::string& name, int site, const std::string& role,
                 const Change& change = {}) {
    add(name, site, role, change, GgufType::f32);
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
  void add(const std::string& name, int site, const std::string& role, const Change& change,
           GgufType type) {
    const Parameter* parameter = model_.parameters().find(site, role);
    require(parameter != nullptr, "GGUF: tensor {}: the model has no parameter {} at site {}", name,
            role, site);
    used_.insert(parameter);
    const at::Tensor tensor = parameter->tensor.detach();
    std::vector<int64_t> shape = tensor.sizes().vec();
    if (change) {
      // The change of a tensor without data, for its shape.
      shape = change(at::empty(shape, tensor.options().device(at::kMeta))).sizes().vec();
    }
    if (type == GgufType::q8_0 && shape.back() % kGgufBlock != 0) type = GgufType::f16;
    tensors_.push_back({name, shape, type, [=] { return change ? change(tensor) : tensor; }});
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

void add_embeddings(Tensors& tensors, const Transformer& model) {
  tensors.add_matrix("token_embd.weight", kEmbeddingSite, "token_embedding");
  tensors.add_exact("output_norm.weight", model.sublayers(), "input_norm");
  if (!model.config().tie_embeddings) {
    tensors.add_matrix("output.weight", model.sublayers(), "head");
  }
}

void add_dense(Tensors& tensors, const std::string& layer, int site) {
  for (const char* map : {"gate", "up", "down"}) {
    tensors.add_matrix(fmt::format("{}ffn_{}.weight", layer, map), site,
                       fmt::format("{}_proj", map));
  }
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

std::vector<GgufTensor> tensors_of(const Transformer& model, GgufType type) {
  Tensors tensors(model, type);
  add_embeddings(tensors, model);
  for (int site = 0; site < model.sublayers(); site += 2) {
    const std::string layer = fmt::format("blk.{}.", site / 2);
    tensors.add_exact(layer + "attn_norm.weight", site, "input_norm");
    add_grouped_query(tensors, layer, site, model.config());
    tensors.add_exact(layer + "ffn_norm.weight", site + 1, "input_norm");
    add_dense(tensors, layer, site + 1);
  }
  return tensors.all();
}

uint32_t whole(int64_t number) {
  return static_cast<uint32_t>(number);
}

GgufMetadata metadata_of(const Transformer& model, int64_t context, GgufType type) {
  const ModelConfig& config = model.config();
  const std::string architecture = gguf_architecture(model);
  GgufMetadata metadata = {{"general.architecture", architecture},
                           {"general.file_type", file_type(type)}};
  if (type == GgufType::q8_0) metadata.emplace_back("general.quantization_version", uint32_t{2});
  const auto add = [&](const std::string& key, GgufValue value) {
    metadata.emplace_back(architecture + "." + key, std::move(value));
  };
  add("vocab_size", whole(model.vocab_size()));
  add("context_length", whole(context));
  add("embedding_length", whole(config.width));
  add("block_count", whole(config.layers));
  add("feed_forward_length", whole(config.ffn_width));
  add("attention.layer_norm_rms_epsilon", static_cast<float>(config.norm_eps));
  add("attention.head_count", whole(config.heads));
  add("attention.head_count_kv", whole(config.kv_heads));
  add("rope.dimension_count", whole(config.width / config.heads));
  add("rope.freq_base", static_cast<float>(config.rope_theta));
  return metadata;
}

}  // namespace

std::string gguf_architecture(const Transformer& model) {
  const std::string mechanism = model.config().depth_mixing.at("type").get<std::string>();
  require(mechanism == "residual",
          "model.depth_mixing.type {}: llama.cpp computes only residual connections with "
          "grouped-query attention",
          mechanism);
  return "llama";
}

void save_gguf(const Transformer& model, const std::filesystem::path& path, int64_t context,
               const GgufMetadata& tokenizer, GgufType type) {
  GgufMetadata metadata = metadata_of(model, context, type);
  metadata.insert(metadata.end(), tokenizer.begin(), tokenizer.end());
  write_gguf(path, metadata, tensors_of(model, type));
}

}  // namespace attnres
