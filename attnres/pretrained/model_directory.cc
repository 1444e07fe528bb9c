#include "attnres/pretrained/model_directory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "attnres/formats/config_keys.h"
#include "attnres/formats/gguf_config.h"
#include "attnres/formats/gguf_load.h"
#include "attnres/formats/gguf_reader.h"
#include "attnres/formats/stored_form.h"
#include "attnres/layers/experts.h"
#include "attnres/model/device_copy.h"
#include "attnres/model/parameter_names.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/pretrained/adapter.h"
#include "attnres/pretrained/chat_template_files.h"
#include "attnres/pretrained/directory_files.h"
#include "attnres/pretrained/find_model.h"
#include "attnres/pretrained/gguf_tokenizer.h"
#include "attnres/pretrained/named_weights.h"
#include "attnres/support/compute_device.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/text/ids.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEnds = "eos_token_id";

// What generation_config.json has as its tokens that end a document; null where it has none. A file
// that cannot be read is one of `notes`: whoever samples as it says refuses it.
Json generation_ends(const fs::path& path, std::vector<std::string>& notes) {
  if (!path_exists(path)) return {};
  try {
    const Json json = read_json(path);
    const ConfigKeys keys(json, path.string());
    return keys.missing(kEnds) ? Json() : keys.at(kEnds);
  } catch (const Error& e) {
    notes.push_back(fmt::format("{}; what it says of a text's end is not read", e.what()));
    return {};
  }
}

// generation_config.json names tokens that end a document, too, and some of them nothing else does.
void add_generation_ends(const fs::path& folder, StoredConfig& stored) {
  const fs::path path = folder / kGenerationFile;
  DocumentIds said;
  said.end = known_ids(generation_ends(path, stored.notes), stored.vocab_size,
                       fmt::format("{}: {}", path.string(), kEnds), stored.notes);
  std::vector<int64_t> ends = stored.document_ids.ends();
  const size_t before = ends.size();
  for (const int64_t id : said.ends()) {
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  }
  if (ends.size() == before) return;
  stored.document_ids.end = ends.size() == 1 ? Json(ends[0]) : Json(ends);
}

StoredConfig read_stored_config(const fs::path& folder) {
  const fs::path path = folder / kConfigFile;
  require(path_exists(path), "{}: not a model directory: it has no {}", folder.string(),
          kConfigFile);
  StoredConfig stored = from_config_json(read_json(path), path.string());
  add_generation_ends(folder, stored);
  return stored;
}

// Whether the file has what decides the size of a model, before one of that size is made.
void check_dimensions(const NamedWeights& weights, const StoredConfig& stored) {
  const ModelConfig& model = stored.model;
  weights.check(kEmbedding, {stored.vocab_size, model.width});
  Parameter parameter;
  for (parameter.site = 1; parameter.site < model.sublayers(); parameter.site += 2) {
    const bool dense = !model.has_experts(parameter.site / 2);
    const ExpertsSettings& experts = model.settings<ExpertsSettings>();
    parameter.role = dense ? "down_proj" : "w1";
    const std::string name = hugging_face_name(parameter, model.sublayers(), experts.count - 1);
    const int64_t read = experts.latent_width > 0 ? experts.latent_width : model.width;
    weights.check(
        name, dense ? std::vector{model.width, model.ffn_width} : std::vector{experts.width, read});
  }
}

// Whether the file has every tensor of the whole model, and no other.
void check_tensors(const NamedWeights& weights, const Transformer& whole) {
  std::set<std::string> known;
  for (const Parameter& parameter : whole.parameters().all()) {
    for (const StoredTensor& tensor : stored_tensors(parameter, whole.sublayers())) {
      weights.check(tensor.name, tensor.shape);
      known.insert(tensor.name);
    }
  }
  if (whole.config().tie_embeddings && weights.contains(kHead)) {
    // It then is the embedding.
    require(at::equal(weights.read(kHead), weights.read(kEmbedding)),
            "{}: {} differs from the token embedding, but tie_word_embeddings is true",
            weights.what(), kHead);
    known.insert(kHead);
  }
  weights.check_all_known(known);
}

// The format in which the files hold all of a parameter, where it can be kept so.
std::optional<WeightFormat> stored_format(const NamedWeights& weights,
                                          const std::vector<StoredTensor>& tensors,
                                          const StoredForm& form) {
  if (form.from_file) return {};
  const std::optional<WeightFormat> format = weights.packed_format(tensors[0].name);
  const bool alike = std::all_of(tensors.begin(), tensors.end(), [&](const StoredTensor& tensor) {
    return weights.packed_format(tensor.name) == format;
  });
  return alike ? format : std::nullopt;
}

// The rows of a parameter as the files have them.
void take_stored(const NamedWeights& weights, const std::vector<StoredTensor>& tensors,
                 const at::Tensor& rows) {
  for (const StoredTensor& tensor : tensors) {
    const at::Tensor place = tensor.expert >= 0 ? rows.select(0, tensor.expert) : rows;
    place.copy_(weights.read_packed(tensor.name).bytes);
  }
}

void read_packed(const NamedWeights& weights, const std::vector<StoredTensor>& tensors,
                 const StoredForm& form, const PackedMatrix& packed) {
  for (const StoredTensor& tensor : tensors) {
    PackedMatrix place = packed;
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

// Fills parameters of a model, whose process may have parts of them.
class FolderReader {
 public:
  FolderReader(const NamedWeights& weights, const StoredConfig& stored, const Transformer& model)
      : weights_(weights), stored_(stored), model_(model) {}

  // The tensors of the files of which a parameter is made.
  std::vector<std::string> file_names(const Parameter& parameter) const {
    std::vector<std::string> names;
    for (const StoredTensor& tensor : tensors_of(whole_of(parameter))) {
      const std::vector<std::string>& of = weights_.file_names(tensor.name);
      names.insert(names.end(), of.begin(), of.end());
    }
    return names;
  }

  void fill(const Parameter& parameter) const {
    const Parameter whole = whole_of(parameter);
    const std::vector<StoredTensor> tensors = tensors_of(whole);
    const StoredForm form = stored_form(stored_.layout, stored_.model, whole);
    const PackedMatrix& packed = parameter.packed;
    const bool is_part = whole.tensor.sizes() != parameter.tensor.sizes();
    if (packed.defined() && stored_format(weights_, tensors, form) == packed.format) {
      take_rows(parameter, whole, tensors);
    } else if (is_part) {
      take_part(parameter, whole, tensors, form);
    } else if (packed.defined()) {
      read_packed(weights_, tensors, form, packed);
    } else {
      read_numbers(weights_, tensors, form, parameter.tensor.detach());
    }
  }

 private:
  TensorPart part() const { return model_.parameters().part(); }
  Parameter whole_of(const Parameter& parameter) const {
    return without_numbers(part(), parameter);
  }
  std::vector<StoredTensor> tensors_of(const Parameter& whole) const {
    return stored_tensors(whole, model_.sublayers());
  }

  void take_rows(const Parameter& parameter, const Parameter& whole,
                 const std::vector<StoredTensor>& tensors) const {
    if (whole.tensor.sizes() == parameter.tensor.sizes()) {
      return take_stored(weights_, tensors, parameter.packed.bytes);
    }
    std::vector<int64_t> sizes = whole.tensor.sizes().vec();
    sizes.back() = packed_row_bytes(parameter.packed.format, sizes.back());
    const at::Tensor rows = at::empty(sizes, at::kByte);
    take_stored(weights_, tensors, rows);
    at::Tensor(parameter.packed.bytes).copy_(part_of_parameter(part(), parameter, rows));
  }

  void take_part(const Parameter& parameter, const Parameter& whole,
                 const std::vector<StoredTensor>& tensors, const StoredForm& form) const {
    const at::Tensor numbers =
        at::empty(whole.tensor.sizes(), parameter.tensor.options().device(at::kCPU)).detach();
    read_numbers(weights_, tensors, form, numbers);
    const at::Tensor own = part_of_parameter(part(), parameter, numbers).contiguous();
    if (parameter.packed.defined()) return pack_weight(own, parameter.packed);
    parameter.tensor.detach().copy_(own);
  }

  const NamedWeights& weights_;
  const StoredConfig& stored_;
  const Transformer& model_;
};

// `whole` is all of the files' model, without numbers; `config` may add parameters to it, which
// have none yet.
std::unique_ptr<Transformer> load_folder(const TensorFiles& files, const NamedWeights& weights,
                                         const StoredConfig& stored, const Transformer& whole,
                                         const ModelConfig& config, const Precision& precision,
                                         const SiteSet& sites, const TensorGroup* group) {
  check_tensors(weights, whole);
  auto model =
      std::make_unique<Transformer>(config, stored.vocab_size,
                                    /*seed=*/std::nullopt, precision, at::kCPU, sites, group);
  const FolderReader reader(weights, stored, *model);
  std::vector<const Parameter*> in_files;
  std::vector<std::string> names;
  for (const Parameter& parameter : model->parameters().all()) {
    if (whole.parameters().find(parameter.site, parameter.role) == nullptr) continue;
    in_files.push_back(&parameter);
    const std::vector<std::string> of = reader.file_names(parameter);
    names.insert(names.end(), of.begin(), of.end());
  }
  // A checksum goes from number to number: one thread takes it while others copy.
  auto verified = std::async(std::launch::async, [&] { files.verify(names); });
  for (const Parameter* parameter : in_files) reader.fill(*parameter);
  verified.get();
  return model;
}

// How a weight that cannot be kept as it is stored is kept beside packed ones.
WeightFormat nearest_format(const NamedWeights& weights, const std::string& name) {
  if (weights.packed_format(name) || weights.dtype(name) == at::kBFloat16)
    return WeightFormat::bf16;
  return weights.dtype(name) == at::kHalf ? WeightFormat::f16 : WeightFormat::f32;
}

// Of the weights of a folder that holds some packed: as they are stored, and in bfloat16 where a
// packed one has to be taken apart.
WeightFormats formats_of_folder(const NamedWeights& weights, const StoredConfig& stored,
                                const Transformer& whole) {
  WeightFormats::OfWeights formats;
  for (const Parameter& parameter : whole.parameters().all()) {
    const std::vector<StoredTensor> tensors = stored_tensors(parameter, whole.sublayers());
    for (const StoredTensor& tensor : tensors) weights.check(tensor.name, tensor.shape);
    const StoredForm form = stored_form(stored.layout, stored.model, parameter);
    formats[{parameter.site, parameter.role}] =
        stored_format(weights, tensors, form)
            .value_or(nearest_format(weights, tensors.front().name));
  }
  return WeightFormats(std::move(formats));
}

std::unique_ptr<Transformer> on_compute_device(std::unique_ptr<Transformer> model) {
  if (compute_device().is_cpu()) return model;
  return copy_to_device(*model, compute_device());
}

}  // namespace

// A folder's model without numbers, whose parameters say what its files have to hold.
struct ModelDirectory::Whole {
  std::once_flag made;
  std::unique_ptr<const Transformer> model;
};

ModelDirectory::ModelDirectory(const fs::path& path)
    : path_(path), base_path_(path), whole_(std::make_unique<Whole>()) {
  if (is_adapter_folder(path)) {
    adapter_ = std::make_unique<Adapter>(path);
    base_path_ = find_model(adapter_->model());
  }
  open_base();
}

ModelDirectory::ModelDirectory(const fs::path& path, const fs::path& adapter)
    : path_(adapter),
      base_path_(path),
      adapter_(std::make_unique<Adapter>(adapter)),
      whole_(std::make_unique<Whole>()) {
  open_base();
}

void ModelDirectory::open_base() {
  require(
      !is_adapter_folder(base_path_),
      "{}: is an adapter itself; merge it into its model first: attnres export --model {} --out "
      "DIR",
      base_path_.string(), base_path_.string());
  if (is_gguf_file(base_path_)) {
    gguf_ = std::make_unique<GgufFile>(base_path_);
    gguf_config_ = std::make_unique<GgufConfig>(read_gguf_config(*gguf_));
    stored_ = gguf_config_->stored;
  } else {
    stored_ = read_stored_config(base_path_);
    files_ = std::make_unique<TensorFiles>(base_path_);
    weights_ = std::make_unique<NamedWeights>(*files_, stored_);
  }
  files_model_ = stored_.model;
  if (adapter_) stored_.model = adapter_->adapted(stored_.model);
}

ModelDirectory::ModelDirectory(ModelDirectory&&) noexcept = default;
ModelDirectory& ModelDirectory::operator=(ModelDirectory&&) noexcept = default;
ModelDirectory::~ModelDirectory() = default;

const Transformer& ModelDirectory::whole() const {
  std::call_once(whole_->made, [&] {
    check_dimensions(*weights_, stored_);
    whole_->model = std::make_unique<Transformer>(files_model_, stored_.vocab_size,
                                                  /*seed=*/std::nullopt, at::kFloat, at::kMeta);
  });
  return *whole_->model;
}

std::vector<std::string> ModelDirectory::notes() const {
  std::vector<std::string> notes = stored_.notes;
  if (gguf_) return notes;
  const std::vector<std::string> of_files = files_->notes();
  notes.insert(notes.end(), of_files.begin(), of_files.end());
  if (const std::string note = weights_->note(); !note.empty()) notes.push_back(note);
  if (!stored_.misspelled.empty()) {
    notes.push_back(fmt::format("{}: not read, and perhaps misspelled: {}",
                                (base_path_ / "config.json").string(),
                                fmt::join(stored_.misspelled, ", ")));
  }
  return notes;
}

WeightFormats ModelDirectory::weight_formats() const {
  return gguf_ || weights_->has_packed() ? stored_formats() : WeightFormats();
}

WeightFormats ModelDirectory::stored_formats() const {
  const WeightFormats of_files = gguf_ ? gguf_weight_formats(*gguf_, *gguf_config_)
                                       : formats_of_folder(*weights_, stored_, whole());
  if (!adapter_) return of_files;
  // What the adapter has is not rounded.
  WeightFormats::OfWeights kept;
  const Transformer shapes(stored_.model, stored_.vocab_size, /*seed=*/std::nullopt, at::kFloat,
                           at::kMeta);
  for (const Parameter& p : shapes.parameters().all()) {
    if (adapter_->has(p, shapes.sublayers())) continue;
    kept[{p.site, p.role}] = of_files.of(p.site, p.role);
  }
  return WeightFormats(std::move(kept));
}

FileLayout ModelDirectory::adapter_layout() const {
  return gguf_ ? layout_of(files_model_) : stored_.layout;
}

const fs::path& ModelDirectory::tokenizer_folder() const {
  return adapter_ && !tokenizer_files(path_).empty() ? path_ : base_path_;
}

std::unique_ptr<Tokenizer> ModelDirectory::tokenizer() const {
  const fs::path& folder = tokenizer_folder();
  return gguf_ && folder == base_path_ ? read_gguf_tokenizer(*gguf_) : load_tokenizer(folder);
}

std::unique_ptr<Tokenizer> ModelDirectory::tokenizer_if_read(std::string* why) const {
  try {
    return tokenizer();
  } catch (const UnreadTokenizer& e) {
    if (why != nullptr) *why = e.what();
    return nullptr;
  }
}

std::unique_ptr<Tokenizer> ModelDirectory::ids() const {
  IdsTokenizer::Files files;
  if (!gguf_) {
    for (const fs::path& file : tokenizer_files(tokenizer_folder())) {
      files.emplace_back(file.filename().string(), read_file(file));
    }
  }
  const std::vector<int64_t> ends = stored_.document_ids.ends();
  return std::make_unique<IdsTokenizer>(
      vocab_size(), ends.empty() ? -1 : static_cast<int32_t>(ends[0]), std::move(files));
}

ChatTemplate ModelDirectory::chat_template() const {
  return gguf_ ? read_chat_template(*gguf_) : read_chat_template(base_path_);
}

std::vector<int64_t> ModelDirectory::ends(const Tokenizer* tokenizer) const {
  std::vector<int64_t> ends = stored_.document_ids.ends();
  if (tokenizer != nullptr && tokenizer->end_of_document() >= 0) {
    ends.push_back(tokenizer->end_of_document());
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

std::unique_ptr<Transformer> ModelDirectory::load(const Precision& precision, const SiteSet& sites,
                                                  const TensorGroup* group) const {
  if (adapter_) {
    require_usage(
        group == nullptr,
        "{}: processes of a tensor group do not share an adapter; merge it into its model "
        "first (attnres export), or use one process",
        path_.string());
    return load_as(stored_.model, /*seed=*/0, precision, sites);
  }
  return on_compute_device(load_files(stored_.model, precision, sites, group));
}

std::unique_ptr<Transformer> ModelDirectory::load_as(const ModelConfig& model, uint64_t seed,
                                                     const Precision& precision,
                                                     const SiteSet& sites) const {
  auto loaded = load_files(model, precision, sites, /*group=*/nullptr);
  const Transformer base = base_shapes();
  for (const Parameter& parameter : loaded->parameters().all()) {
    const bool is_added = base.parameters().find(parameter.site, parameter.role) == nullptr;
    if (is_added) loaded->parameters().start(parameter, seed);
  }
  if (adapter_) adapter_->fill(*loaded, adapter_layout());
  return on_compute_device(std::move(loaded));
}

Transformer ModelDirectory::base_shapes() const {
  return {files_model_, stored_.vocab_size, /*seed=*/std::nullopt, at::kFloat, at::kMeta};
}

std::set<std::pair<int, std::string>> ModelDirectory::beyond_base(const Transformer& model) const {
  const Transformer base = base_shapes();
  std::set<std::pair<int, std::string>> beyond;
  for (const Parameter& p : model.parameters().all()) {
    const bool is_bases = base.parameters().find(p.site, p.role) != nullptr;
    const bool is_adapters = adapter_ && adapter_->has(p, model.sublayers());
    if (!is_bases || is_adapters) beyond.emplace(p.site, p.role);
  }
  return beyond;
}

std::unique_ptr<Transformer> ModelDirectory::load_files(const ModelConfig& config,
                                                        const Precision& precision,
                                                        const SiteSet& sites,
                                                        const TensorGroup* group) const {
  auto model =
      gguf_ ? load_gguf(*gguf_, *gguf_config_, config, precision, sites, group)
            : load_folder(*files_, *weights_, stored_, whole(), config, precision, sites, group);
  // Checking read all of them, and what a model keeps it copied, or maps of a GGUF file.
  gguf_ ? gguf_->release_pages() : files_->release_pages();
  return model;
}

std::unique_ptr<Transformer> load_model(const fs::path& path, const Precision& precision,
                                        const SiteSet& sites, const TensorGroup* group) {
  return ModelDirectory(path).load(precision, sites, group);
}

}  // namespace attnres
