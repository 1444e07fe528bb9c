#include "attnres/pretrained/model_directory.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "attnres/formats/gguf_config.h"
#include "attnres/formats/gguf_load.h"
#include "attnres/formats/gguf_reader.h"
#include "attnres/formats/modeling_attnres.h"
#include "attnres/formats/stored_form.h"
#include "attnres/model/parameter_names.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/pretrained/gguf_tokenizer.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConfigFile = "config.json";
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kOutputScore = "model.output_attn_res_proj.weight";
constexpr const char* kNested = "language_model.";  // before every name in K3's files

StoredConfig read_stored_config(const fs::path& folder) {
  if (is_gguf_file(folder)) return read_gguf_config(GgufFile(folder)).stored;
  const fs::path path = folder / kConfigFile;
  require(path_exists(path), "{}: not a model directory: it has no {}", folder.string(),
          kConfigFile);
  return from_config_json(read_json(path), path.string());
}

// Finishes or undoes an interrupted write of a run's checkpoint, unless a running training, which
// holds the run's lock, is writing it now.
void repair_checkpoint(const fs::path& checkpoint) {
  const fs::path run = checkpoint.parent_path().parent_path();
  try {
    const FolderLock lock(run);
    recover_folder(checkpoint);
  } catch (const Error&) {
    // In use, or read-only: what stands is used as it is.
  }
}

// Replaces every `from` in the name.
void rename(std::string& name, const std::string& from, const std::string& to) {
  const size_t at = name.find(from);
  if (at != std::string::npos) name.replace(at, from.size(), to);
}

// Parts of names of a layout, and ours in their place; a name is changed by each at most once, and
// none is changed twice, since Gemma's of one norm is ours of another.
using NameParts = std::vector<std::pair<std::string, std::string>>;

const NameParts& name_parts(FileLayout layout) {
  static const NameParts gemma = {
      {".post_attention_layernorm.", ".self_attention_output_norm."},
      {".pre_feedforward_layernorm.", ".post_attention_layernorm."},
      {".post_feedforward_layernorm.", ".mlp_output_norm."},
  };
  static const NameParts deepseek = {
      {".mlp.experts.", ".block_sparse_moe.experts."},
      {".mlp.shared_experts.", ".block_sparse_moe.shared_experts."},
      {".mlp.gate.", ".block_sparse_moe.gate."},
  };
  static const NameParts none;
  return layout == FileLayout::gemma3 ? gemma : layout == FileLayout::deepseek_v3 ? deepseek : none;
}

// An expert's maps.
const NameParts kDeepseekExpert = {
    {".gate_proj.", ".w1."}, {".down_proj.", ".w2."}, {".up_proj.", ".w3."}};

// The first that is there, to ours or back.
void rename_part(std::string& name, const NameParts& parts, bool to_ours) {
  for (const auto& [theirs, ours] : parts) {
    const std::string& from = to_ours ? theirs : ours;
    if (name.find(from) == std::string::npos) continue;
    rename(name, from, to_ours ? ours : theirs);
    return;
  }
}

std::string renamed(FileLayout layout, std::string name, bool to_ours) {
  rename_part(name, name_parts(layout), to_ours);
  const bool is_expert = name.find("moe.experts.") != std::string::npos ||
                         name.find("mlp.experts.") != std::string::npos;
  if (layout == FileLayout::deepseek_v3 && is_expert) rename_part(name, kDeepseekExpert, to_ours);
  return name;
}

// Our name of a tensor of a file (model/parameter_names.h): programs spell some in other ways.
std::string our_name(FileLayout layout, std::string name) {
  if (name.starts_with(kNested)) name.erase(0, std::string_view(kNested).size());
  name = renamed(layout, std::move(name), /*to_ours=*/true);
  for (const char* map : {"gate_proj", "up_proj", "down_proj"}) {
    rename(name, fmt::format(".block_sparse_moe.{}.", map), fmt::format(".mlp.{}.", map));
  }
  rename(name, ".block_sparse_moe.e_score_correction_bias",
         ".block_sparse_moe.gate.e_score_correction_bias");
  rename(name, "_res.proj_weight", "_res_proj.weight");
  rename(name, "_res.norm_weight", "_res_norm.weight");
  return name;
}

// Tensors that do not change what a text model computes.
bool is_ignored(const std::string& name) {
  // The frequencies of rotary positions, in older files, follow from rope_theta.
  if (name.ends_with(".rotary_emb.inv_freq")) return true;
  // K3's first attention has nothing to choose from.
  if (name.starts_with("model.layers.0.self_attention_res_")) return true;
  for (const char* part : {"model.mtp", "vision_", "mm_projector", "multi_modal_projector"}) {
    if (name.starts_with(part)) return true;
  }
  return false;
}

// The file's tensors under our names.
class NamedWeights {
 public:
  NamedWeights(const TensorFiles& weights, FileLayout layout) : weights_(weights) {
    for (const std::string& name : weights.names()) {
      const auto [entry, is_new] = file_names_.emplace(our_name(layout, name), name);
      require(is_new, "{}: {} and {} are the same tensor", weights.what(), entry->second, name);
    }
  }

  bool contains(const std::string& name) const { return file_names_.contains(name); }
  const std::string& file_name(const std::string& name) const { return file_names_.at(name); }
  at::Tensor read(const std::string& name) const { return weights_.read(file_name(name)); }
  const std::string& what() const { return weights_.what(); }

  // That it is there, in this shape (A_log is stored in several, of one long dimension), and in a
  // type that can be read.
  void check(const std::string& name, const std::vector<int64_t>& expected) const {
    require(contains(name), "{}: the tensor {} is missing{}", weights_.what(), name,
            contains(name + "_packed")
                ? ": the file holds it quantized, which attnres does not read"
                : "");
    const TensorInfo& info = weights_.info(file_names_.at(name));
    const bool is_flat = name.ends_with(".A_log");
    require(is_flat ? without_ones(info.shape) == without_ones(expected) : info.shape == expected,
            "{}: {} has the shape [{}], expected [{}]", weights_.what(), file_names_.at(name),
            fmt::join(info.shape, ", "), fmt::join(expected, ", "));
    require(info.dtype == at::kFloat || info.dtype == at::kBFloat16 || info.dtype == at::kHalf,
            "{}: {} is stored as {}; weights are read as float32, bfloat16 or float16",
            weights_.what(), file_names_.at(name), c10::toString(info.dtype));
  }

  // Throws when the file has a tensor that is in nobody's list.
  void check_all_known(const std::set<std::string>& known) const {
    for (const auto& [name, file_name] : file_names_) {
      require(known.contains(name) || is_ignored(name), "{}: {} is no tensor of this model",
              weights_.what(), file_name);
    }
  }

 private:
  static std::vector<int64_t> without_ones(std::vector<int64_t> shape) {
    std::erase(shape, 1);
    return shape;
  }

  const TensorFiles& weights_;
  std::map<std::string, std::string> file_names_;  // by ours
};

// Whether the file has what decides the size of a model, before one of that size is made.
void check_dimensions(const NamedWeights& weights, const StoredConfig& stored) {
  const ModelConfig& model = stored.model;
  weights.check(kEmbedding, {stored.vocab_size, model.width});
  Parameter parameter;
  for (parameter.site = 1; parameter.site < model.sublayers(); parameter.site += 2) {
    const bool dense = !model.has_experts(parameter.site / 2);
    const ExpertsSettings& experts = model.experts;
    parameter.role = dense ? "down_proj" : "w1";
    const std::string name = hugging_face_name(parameter, model.sublayers(), experts.count - 1);
    const int64_t read = experts.latent_width > 0 ? experts.latent_width : model.width;
    weights.check(
        name, dense ? std::vector{model.width, model.ffn_width} : std::vector{experts.width, read});
  }
}

// Whether the file has every tensor of the whole model, and no other.
void check_tensors(const NamedWeights& weights, const StoredConfig& stored) {
  const Transformer whole(stored.model, stored.vocab_size, /*seed=*/std::nullopt, at::kFloat,
                          at::kMeta);
  std::set<std::string> known;
  for (const Parameter& parameter : whole.parameters().all()) {
    for (const StoredTensor& tensor : stored_tensors(parameter, whole.sublayers())) {
      weights.check(tensor.name, tensor.shape);
      known.insert(tensor.name);
    }
  }
  if (stored.model.tie_embeddings && weights.contains(kHead)) {
    // It then is the embedding.
    require(at::equal(weights.read(kHead), weights.read(kEmbedding)),
            "{}: {} differs from the token embedding, but tie_word_embeddings is true",
            weights.what(), kHead);
    known.insert(kHead);
  }
  weights.check_all_known(known);
}

// What this layout holds beside the model's parameters, or in another shape.
NamedTensors in_layout(FileLayout layout, NamedTensors tensors) {
  if (layout == FileLayout::kimi_linear) {
    for (auto& [name, tensor] : tensors) {
      if (name.ends_with(".A_log")) tensor = tensor.view({1, 1, -1, 1});
    }
  }
  for (auto& [name, tensor] : tensors) name = renamed(layout, std::move(name), /*to_ours=*/false);
  if (layout != FileLayout::kimi_k3) return tensors;
  const auto is_score = [](const auto& entry) { return entry.first == kOutputScore; };
  if (const auto score = std::find_if(tensors.begin(), tensors.end(), is_score);
      score != tensors.end()) {
    const at::Tensor like = score->second;
    tensors.emplace_back("model.layers.0.self_attention_res_proj.weight", at::zeros_like(like));
    tensors.emplace_back("model.layers.0.self_attention_res_norm.weight",
                         at::ones_like(like).flatten());
  }
  for (auto& [name, tensor] : tensors) name.insert(0, kNested);
  return tensors;
}

// Throws where the layout has no such model.
Json config_json(const Transformer& model, int64_t context, const DocumentIds& document_ids,
                 at::ScalarType dtype, std::optional<FileLayout> layout) {
  return to_config_json({model.config(), model.vocab_size(), context, document_ids,
                         layout.value_or(layout_of(model.config()))},
                        dtype);
}

void write_config_json(const fs::path& folder, const Json& config) {
  if (config.contains("auto_map")) write_file(folder / kModelingFile, modeling_attnres());
  write_file(folder / kConfigFile, config.dump(2) + "\n");
}

}  // namespace

fs::path find_model_directory(const fs::path& path) {
  if (is_gguf_file(path)) return path;
  const fs::path folder = fs::weakly_canonical(path);
  const bool is_checkpoint = folder.parent_path().filename() == "checkpoints";
  const bool is_run = path_exists(folder / "checkpoints");
  if (is_checkpoint) repair_checkpoint(folder);
  if (is_run) {
    for (const char* name : {"best", "last"}) repair_checkpoint(folder / "checkpoints" / name);
  }

  require(path_exists(folder), "{}: no such model directory", path.string());
  require(fs::is_directory(folder),
          "{}: is neither a folder nor a GGUF file, expected a model directory or such a file",
          path.string());
  if (path_exists(folder / kConfigFile)) return path;
  for (const char* name : {"best", "last"}) {
    const fs::path checkpoint = path / "checkpoints" / name;
    if (fs::exists(checkpoint / kConfigFile)) return checkpoint;
  }
  require(!is_run, "{}: this run has no checkpoint yet", path.string());
  fail("{}: not a model directory: it has neither {} nor checkpoints/best", path.string(),
       kConfigFile);
}

NamedTensors model_tensors(const Transformer& stage, at::ScalarType dtype,
                           std::optional<FileLayout> layout) {
  const FileLayout of_files = layout.value_or(layout_of(stage.config()));
  NamedTensors tensors;
  for (const Parameter& parameter : stage.parameters().all()) {
    // A router's bias decides which experts are chosen: no file rounds it.
    const bool is_exact = parameter.kind == ParameterKind::router_bias && dtype != at::kDouble;
    const StoredForm form = stored_form(of_files, stage.config(), parameter);
    const at::Tensor own = parameter.tensor.detach();
    const at::Tensor values =
        (form.to_file ? form.to_file(own) : own).to(is_exact ? at::kFloat : dtype);
    for (const StoredTensor& stored_tensor : stored_tensors(parameter, stage.sublayers())) {
      tensors.emplace_back(stored_tensor.name, stored_tensor.view(values));
    }
  }
  return in_layout(of_files, std::move(tensors));
}

void save_model_config(const Transformer& stage, const fs::path& folder, int64_t context,
                       const DocumentIds& document_ids, at::ScalarType dtype,
                       std::optional<FileLayout> layout) {
  write_config_json(folder, config_json(stage, context, document_ids, dtype, layout));
}

void save_model(const Transformer& model, const fs::path& folder, int64_t context,
                const DocumentIds& document_ids, at::ScalarType dtype,
                std::optional<FileLayout> layout) {
  const Json config = config_json(model, context, document_ids, dtype, layout);
  write_tensor_files(folder, kWeights, model_tensors(model, dtype, layout));
  write_config_json(folder, config);
}

void save_model_folder(const fs::path& folder, const Transformer& model, const Tokenizer& tokenizer,
                       int64_t context, at::ScalarType dtype) {
  write_folder(folder, [&](const fs::path& filling) {
    save_model(model, filling, context, tokenizer.end_of_document(), dtype);
    tokenizer.save(filling);
  });
}

void save_model_folder_like(const fs::path& folder, const Transformer& model, const fs::path& like,
                            int64_t context, at::ScalarType dtype,
                            std::optional<FileLayout> layout) {
  write_folder(folder, [&](const fs::path& filling) {
    save_model(model, filling, context, model_document_ids(like), dtype, layout);
    if (is_gguf_file(like)) return model_tokenizer(like)->save(filling);
    for (const fs::path& file : tokenizer_files(like)) {
      write_file(filling / file.filename(), read_file(file));
    }
  });
}

std::unique_ptr<Transformer> load_model(const fs::path& folder, Precision precision,
                                        SiteSet sites) {
  if (is_gguf_file(folder)) {
    const GgufFile file(folder);
    auto model = load_gguf(file, read_gguf_config(file), precision, sites);
    file.release_pages();  // checking read all of it, and what is joined was copied
    return model;
  }
  const StoredConfig stored = read_stored_config(folder);
  const TensorFiles files(folder);
  const NamedWeights weights(files, stored.layout);
  check_dimensions(weights, stored);

  check_tensors(weights, stored);

  auto model = std::make_unique<Transformer>(stored.model, stored.vocab_size,
                                             /*seed=*/std::nullopt, precision, at::kCPU, sites);
  std::vector<std::string> names;
  std::vector<std::function<void()>> reads;
  for (const Parameter& parameter : model->parameters().all()) {
    for (const StoredTensor& part : stored_tensors(parameter, model->sublayers())) {
      const std::string& name = names.emplace_back(weights.file_name(part.name));
      const StoredForm form = stored_form(stored.layout, stored.model, parameter);
      if (parameter.packed.defined()) {
        PackedWeight place = parameter.packed;
        if (part.expert >= 0) place.bytes = place.bytes.select(0, part.expert);
        reads.emplace_back([&files, name, place, form] {
          const at::Tensor numbers = files.read(name);
          pack_weight(form.from_file ? form.from_file(numbers) : numbers, place);
        });
      } else {
        const at::Tensor place = part.view(parameter.tensor.detach());
        reads.emplace_back([&files, name, place, form] {
          files.read_into(name, place);
          if (form.from_file) place.copy_(form.from_file(place));
        });
      }
    }
  }
  // A checksum goes from number to number: one thread takes it while others copy.
  auto verified = std::async(std::launch::async, [&] { files.verify(names); });
  for (const auto& read : reads) read();
  verified.get();
  return model;
}

WeightFormat model_weight_format(const fs::path& model) {
  if (!is_gguf_file(model)) return WeightFormat::f32;
  const GgufFile file(model);
  return gguf_weight_format(file, read_gguf_config(file));
}

std::unique_ptr<Tokenizer> model_tokenizer(const fs::path& model) {
  return is_gguf_file(model) ? read_gguf_tokenizer(GgufFile(model)) : load_tokenizer(model);
}

ModelConfig model_config(const fs::path& folder) {
  return read_stored_config(folder).model;
}

DocumentIds model_document_ids(const fs::path& folder) {
  return read_stored_config(folder).document_ids;
}

int64_t model_context(const fs::path& folder) {
  return read_stored_config(folder).context;
}

}  // namespace attnres
