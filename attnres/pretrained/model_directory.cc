#include "attnres/pretrained/model_directory.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "attnres/formats/config_keys.h"
#include "attnres/formats/gguf_config.h"
#include "attnres/formats/gguf_load.h"
#include "attnres/formats/gguf_reader.h"
#include "attnres/formats/modeling_attnres.h"
#include "attnres/formats/other_files.h"
#include "attnres/formats/stored_form.h"
#include "attnres/model/parameter_names.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/pretrained/gguf_tokenizer.h"
#include "attnres/pretrained/named_weights.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/text/ids.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConfigFile = "config.json";
constexpr const char* kGenerationFile = "generation_config.json";
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kOutputScore = "model.output_attn_res_proj.weight";
// K3's first attention has nothing to choose from; its files have these two all the same.
constexpr const char* kUnusedScore = "model.layers.0.self_attention_res_proj.weight";
constexpr const char* kUnusedNorm = "model.layers.0.self_attention_res_norm.weight";

// generation_config.json names tokens that end a document, too, and some of them nothing else does.
void add_generation_ends(const fs::path& folder, DocumentIds& ids) {
  const fs::path path = folder / kGenerationFile;
  if (!path_exists(path)) return;
  const Json json = read_json(path);
  const ConfigKeys keys(json, path.string());
  constexpr const char* kEnds = "eos_token_id";
  if (keys.missing(kEnds)) return;
  std::vector<int64_t> ends = ids.ends();
  const size_t before = ends.size();
  for (const int64_t id : keys.at(kEnds).is_array() ? keys.whole_numbers(kEnds)
                                                    : std::vector<int64_t>{keys.whole(kEnds)}) {
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  }
  if (ends.size() > before) ids.end = ends.size() == 1 ? Json(ends[0]) : Json(ends);
}

StoredConfig read_stored_config(const fs::path& folder) {
  if (is_gguf_file(folder)) return read_gguf_config(GgufFile(folder)).stored;
  const fs::path path = folder / kConfigFile;
  require(path_exists(path), "{}: not a model directory: it has no {}", folder.string(),
          kConfigFile);
  StoredConfig stored = from_config_json(read_json(path), path.string());
  add_generation_ends(folder, stored.document_ids);
  return stored;
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
  for (auto& [name, tensor] : tensors) name = name_in_layout(layout, std::move(name));
  if (layout != FileLayout::kimi_k3) return tensors;
  const auto is_score = [](const auto& entry) { return entry.first == kOutputScore; };
  if (const auto score = std::find_if(tensors.begin(), tensors.end(), is_score);
      score != tensors.end()) {
    const at::Tensor like = score->second;
    tensors.emplace_back(kUnusedScore, at::zeros_like(like));
    tensors.emplace_back(kUnusedNorm, at::ones_like(like).flatten());
  }
  for (auto& [name, tensor] : tensors) name.insert(0, kNestedNames);
  return tensors;
}

// Puts what the model directory `like` has there in the place of tensors that no parameter is.
void keep_unused(const fs::path& like, at::ScalarType dtype, NamedTensors& tensors) {
  if (is_gguf_file(like)) return;
  const FileLayout layout = read_stored_config(like).layout;
  if (layout != FileLayout::kimi_k3) return;
  const TensorFiles files(like);
  const NamedWeights weights(files, layout);
  for (auto& [name, tensor] : tensors) {
    for (const char* unused : {kUnusedScore, kUnusedNorm}) {
      if (name != std::string(kNestedNames) + unused || !weights.contains(unused)) continue;
      const at::Tensor kept = weights.read(unused);
      if (kept.numel() == tensor.numel()) tensor = kept.view(tensor.sizes()).to(dtype);
    }
  }
}

void read_packed(const NamedWeights& weights, const std::vector<StoredTensor>& tensors,
                 const StoredForm& form, const PackedWeight& packed) {
  for (const StoredTensor& tensor : tensors) {
    PackedWeight place = packed;
    if (tensor.expert >= 0) place.bytes = place.bytes.select(0, tensor.expert);
    const at::Tensor numbers = weights.read(tensor.name);
    pack_weight(form.from_file ? form.from_file(numbers) : numbers, place);
  }
}

void read_numbers(const NamedWeights& weights, const std::vector<StoredTensor>& tensors,
                  const StoredForm& form, const at::Tensor& numbers) {
  for (const StoredTensor& tensor : tensors) {
    const at::Tensor place = tensor.view(numbers);
    weights.read_into(tensor.name, place);
    if (form.from_file) place.copy_(form.from_file(place));
  }
}

// The whole parameter of which a process holds a part: its shape.
Parameter without_numbers(const TensorPart& part, const Parameter& held) {
  Parameter whole = held;
  whole.tensor =
      at::empty(whole_sizes(part, held), held.tensor.options().device(at::kMeta)).detach();
  return whole;
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
          "{}: is neither a folder nor a GGUF file, expected a model directory or such a file{}",
          path.string(),
          path_exists(folder.parent_path() / kConfigFile)
              ? fmt::format("; did you mean its folder, {}?", folder.parent_path().string())
              : "");
  if (path_exists(folder / kConfigFile)) return path;
  for (const char* name : {"best", "last"}) {
    const fs::path checkpoint = path / "checkpoints" / name;
    if (fs::exists(checkpoint / kConfigFile)) return checkpoint;
  }
  require(!is_run, "{}: this run has no checkpoint yet", path.string());
  require(!path_exists(folder / "study.json"),
          "{0}: holds a study, whose runs have a model each; name one of them, {1}/NAME",
          path.string(), (path / "runs").string());
  fail("{}: not a model directory: it has neither {} nor checkpoints/best{}", path.string(),
       kConfigFile, what_it_holds_instead(folder));
}

NamedTensors model_tensors(const Transformer& stage, at::ScalarType dtype,
                           std::optional<FileLayout> layout,
                           const std::function<at::Tensor(const Parameter&)>& numbers) {
  const FileLayout of_files = layout.value_or(layout_of(stage.config()));
  NamedTensors tensors;
  for (const Parameter& held : stage.parameters().all()) {
    Parameter parameter = held;
    if (numbers) parameter.tensor = numbers(held);
    if (!parameter.tensor.defined()) continue;
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
    const Json config = config_json(model, context, model_document_ids(like), dtype, layout);
    NamedTensors tensors = model_tensors(model, dtype, layout);
    keep_unused(like, dtype, tensors);
    write_tensor_files(filling, kWeights, tensors);
    write_config_json(filling, config);
    if (is_gguf_file(like)) {
      try {
        return model_tokenizer(like)->save(filling);
      } catch (const UnreadTokenizer&) {
        return;  // token ids need none
      }
    }
    for (const fs::path& file : tokenizer_files(like)) {
      write_file(filling / file.filename(), read_file(file));
    }
  });
}

std::unique_ptr<Transformer> load_model(const fs::path& folder, Precision precision,
                                        const SiteSet& sites, const TensorGroup* group) {
  if (is_gguf_file(folder)) {
    const GgufFile file(folder);
    auto model = load_gguf(file, read_gguf_config(file), precision, sites, group);
    file.release_pages();  // checking read all of it, and what is joined was copied
    return model;
  }
  const StoredConfig stored = read_stored_config(folder);
  const TensorFiles files(folder);
  const NamedWeights weights(files, stored.layout);
  check_dimensions(weights, stored);

  check_tensors(weights, stored);

  auto model =
      std::make_unique<Transformer>(stored.model, stored.vocab_size,
                                    /*seed=*/std::nullopt, precision, at::kCPU, sites, group);
  std::vector<std::string> names;
  std::vector<std::function<void()>> reads;
  for (const Parameter& parameter : model->parameters().all()) {
    const Parameter whole = without_numbers(model->parameters().part(), parameter);
    const StoredForm form = stored_form(stored.layout, stored.model, whole);
    const std::vector<StoredTensor> of_files = stored_tensors(whole, model->sublayers());
    for (const StoredTensor& tensor : of_files) {
      const std::vector<std::string>& of = weights.file_names(tensor.name);
      names.insert(names.end(), of.begin(), of.end());
    }
    reads.emplace_back([&, whole, form, of_files] {
      if (whole.tensor.sizes() != parameter.tensor.sizes()) {
        const at::Tensor numbers =
            at::empty(whole.tensor.sizes(), parameter.tensor.options().device(at::kCPU)).detach();
        read_numbers(weights, of_files, form, numbers);
        const at::Tensor own =
            part_of_parameter(model->parameters().part(), parameter, numbers).contiguous();
        if (parameter.packed.defined()) {
          pack_weight(own, parameter.packed);
        } else {
          parameter.tensor.detach().copy_(own);
        }
      } else if (parameter.packed.defined()) {
        read_packed(weights, of_files, form, parameter.packed);
      } else {
        read_numbers(weights, of_files, form, parameter.tensor.detach());
      }
    });
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

std::unique_ptr<Tokenizer> model_ids(const fs::path& model) {
  const StoredConfig stored = read_stored_config(model);
  IdsTokenizer::Files files;
  if (!is_gguf_file(model)) {
    for (const fs::path& file : tokenizer_files(model)) {
      files.emplace_back(file.filename().string(), read_file(file));
    }
  }
  const std::vector<int64_t> ends = stored.document_ids.ends();
  const bool is_known = !ends.empty() && ends[0] >= 0 && ends[0] < stored.vocab_size;
  return std::make_unique<IdsTokenizer>(
      stored.vocab_size, is_known ? static_cast<int32_t>(ends[0]) : -1, std::move(files));
}

int64_t model_vocab_size(const fs::path& folder) {
  return read_stored_config(folder).vocab_size;
}

ModelConfig model_config(const fs::path& folder) {
  return read_stored_config(folder).model;
}

DocumentIds model_document_ids(const fs::path& folder) {
  return read_stored_config(folder).document_ids;
}

std::vector<int64_t> model_ends(const fs::path& folder, const Tokenizer* tokenizer) {
  std::vector<int64_t> ends = model_document_ids(folder).ends();
  if (tokenizer != nullptr && tokenizer->end_of_document() >= 0) {
    ends.push_back(tokenizer->end_of_document());
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

int64_t model_context(const fs::path& folder) {
  return read_stored_config(folder).context;
}

}  // namespace attnres
