#include "attnres/formats/gguf_model.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <set>

#include "attnres/formats/gguf_keys.h"
#include "attnres/formats/gguf_layouts.h"
#include "attnres/formats/gguf_parts.h"
#include "attnres/layers/experts.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// The tensors of a file, made of the model's parameters.
class GgufTensors {
 public:
  GgufTensors(const Transformer& model, const GgufFileType& type) : model_(model), type_(type) {}

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
    const GgufType type = part.storage == GgufPart::Storage::exact
                              ? GgufType::f32
                              : type_of_matrix(type_, matrix_of(placed, shape.back()));
    for (const std::string& role : part.roles) {
      formats_[{placed.site, role}] = weight_format(type);
    }
    tensors_.push_back({part.name, shape, type, [=] { return made(of); }});
  }

  const WeightFormats::OfWeights& formats() const { return formats_; }

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
  GgufMatrix matrix_of(const GgufSitePart& placed, int64_t columns) const {
    const ModelConfig& config = model_.config();
    const std::string& name = placed.part.name;
    const bool is_of_layer = name.starts_with("blk.");
    const bool is_head =
        name == "output.weight" || (config.tie_embeddings && name == "token_embd.weight");
    return {.name = is_of_layer ? name.substr(name.find('.', 4) + 1) : name,
            .layer = std::max(placed.site, 0) / 2,
            .layers = static_cast<int>(config.layers),
            .columns = columns,
            .experts = config.settings<ExpertsSettings>().count,
            .is_head = is_head};
  }

  at::Tensor take(int site, const std::string& role) {
    const Parameter* parameter = model_.parameters().find(site, role);
    require(parameter != nullptr, "GGUF: the model has no parameter {} at site {}", role, site);
    used_.insert(parameter);
    return parameter->tensor.detach();
  }

  const Transformer& model_;
  const GgufFileType& type_;
  std::set<const Parameter*> used_;
  std::vector<GgufTensor> tensors_;
  WeightFormats::OfWeights formats_;  // of the parameters in these
};

GgufTensors tensors_of(const Transformer& model, const GgufFileType& type) {
  GgufTensors tensors(model, type);
  for (const GgufSitePart& part :
       gguf_parts(model.config(), gguf_layout(model.config()).architecture)) {
    tensors.add(part);
  }
  return tensors;
}

}  // namespace

std::vector<GgufTensor> gguf_tensors(const Transformer& model, const GgufFileType& type) {
  return tensors_of(model, type).all();
}

WeightFormats gguf_formats(const Transformer& model, const GgufFileType& type) {
  return WeightFormats(tensors_of(model, type).formats());
}

GgufMetadata gguf_metadata(const Transformer& model, int64_t context, const GgufFileType& type) {
  const ModelConfig& config = model.config();
  const GgufLayout& layout = gguf_layout(config);
  GgufKeys keys(layout.name);
  keys.add("vocab_size", model.vocab_size());
  keys.add("context_length", context);
  keys.add("embedding_length", config.width);
  keys.add("block_count", config.layers);
  keys.add("feed_forward_length", config.ffn_width);
  keys.add("attention.layer_norm_rms_epsilon", config.norm_eps);
  keys.add("attention.head_count", config.heads);
  layout.write(config, keys);

  GgufMetadata metadata = {{"general.architecture", layout.name},
                           {"general.file_type", type.number}};
  if (has_blocks(weight_format(type.type))) {
    metadata.emplace_back("general.quantization_version", uint32_t{2});
  }
  metadata.insert(metadata.end(), keys.metadata().begin(), keys.metadata().end());
  return metadata;
}

std::string gguf_architecture(const ModelConfig& config) {
  return gguf_layout(config).name;
}

void save_gguf(const Transformer& model, const std::filesystem::path& path, int64_t context,
               const GgufMetadata& tokenizer, const GgufFileType& type) {
  GgufMetadata metadata = gguf_metadata(model, context, type);
  metadata.insert(metadata.end(), tokenizer.begin(), tokenizer.end());
  write_gguf(path, metadata, gguf_tensors(model, type));
}

}  // namespace attnres
