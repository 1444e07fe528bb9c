#include "attnres/pretrained/named_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "attnres/formats/safetensors.h"
#include "attnres/layers/delta_attention.h"
#include "attnres/model/parameter_names.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/pretrained/fused_experts.h"
#include "attnres/pretrained/packed_tensors.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

constexpr std::string_view kDecays = ".A_log";  // of delta attention's heads

// Replaces every `from` in the name.
void rename(std::string& name, const std::string& from, const std::string& to) {
  const size_t at = name.find(from);
  if (at != std::string::npos) name.replace(at, from.size(), to);
}

// Parts of names of a layout, and ours in their place; a name is changed by each at most once, and
// none is changed twice, since Gemma's of one norm is ours of another.
using NameParts = std::vector<std::pair<std::string, std::string>>;

bool has_deepseek_names(FileLayout layout) {
  return layout == FileLayout::deepseek_v3 || layout == FileLayout::softmax_experts;
}

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
  if (layout == FileLayout::gemma3) return gemma;
  return has_deepseek_names(layout) ? deepseek : none;
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
  if (has_deepseek_names(layout) && is_expert) rename_part(name, kDeepseekExpert, to_ours);
  return name;
}

// Our name of a tensor of a file (model/parameter_names.h): programs spell some in other ways.
std::string our_name(FileLayout layout, std::string name) {
  if (name.starts_with(kNestedNames)) name.erase(0, std::string_view(kNestedNames).size());
  // Around the text model in newer files of models of images and text.
  for (const char* inner : {"model.language_model.", "model.text_model."}) {
    if (name.starts_with(inner)) name.replace(0, std::string_view(inner).size(), "model.");
  }
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
  // Beside what retrofit put into a model of transformers: config.json has it too.
  return name == "model.depth_attention.sublayers_a_block";
}

constexpr std::string_view kModel = "model.";

// Of an encoder of images or sound, or on the way from it to the text model.
bool is_of_images(std::string_view name) {
  if (name.starts_with(kModel)) name.remove_prefix(kModel.size());
  constexpr std::array kParts = {"vision_",       "visual.",    "mm_projector", "multi_modal_",
                                 "image_newline", "connector.", "audio_"};
  return std::any_of(kParts.begin(), kParts.end(),
                     [&](const char* part) { return name.starts_with(part); });
}

// Of layers that predict tokens behind the next one.
bool is_of_further_tokens(std::string_view name, const StoredConfig& stored) {
  if (name.starts_with(kModel)) name.remove_prefix(kModel.size());
  if (name.starts_with("mtp.") || name.starts_with("mtp_")) return true;
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(kLayers)) return false;
  int64_t layer = 0;
  const char *first = name.data() + kLayers.size(), *last = name.data() + name.size();
  const auto [end, error] = std::from_chars(first, last, layer);
  if (error != std::errc() || end == last || *end != '.') return false;
  return layer >= stored.model.layers && layer < stored.model.layers + stored.further_layers;
}

// What the Python package's retrofit puts into a model of transformers: vectors, of one site after
// the other.
struct OfSite {
  int site;
  std::string role;
};
std::optional<OfSite> of_retrofit(const std::string& name) {
  for (const auto& [list, role] : {std::pair("pseudo_query", "pseudo_query"),
                                   {"key_gain", "key_norm"},
                                   {"mixture_gate", "mixture_gate"}}) {
    const std::string prefix = fmt::format("model.depth_attention.{}.", list);
    if (!name.starts_with(prefix)) continue;
    const char *first = name.data() + prefix.size(), *last = name.data() + name.size();
    OfSite found{.site = 0, .role = role};
    const auto [end, error] = std::from_chars(first, last, found.site);
    if (error == std::errc() && end == last && found.site >= 0) return found;
  }
  return {};
}

MadeTensor made_of_retrofit(const OfSite& from, int sublayers, const std::string& name) {
  Parameter parameter;
  parameter.site = from.site;
  parameter.role = from.role;
  MadeTensor made{hugging_face_name(parameter, sublayers), {name}};
  if (from.role == "pseudo_query") {
    made.make = [](const std::vector<at::Tensor>& t) { return t[0].unsqueeze(0); };
  }
  return made;
}

// What files of models whose experts softmax chooses hold in another way, or not at all: their
// routers have no bias that is moved by load, which is zero here.
std::vector<MadeTensor> made_of_softmax_experts(const std::string& name,
                                                const TensorFiles& weights) {
  if (std::vector<MadeTensor> parts = made_of_fused_experts(name, weights); !parts.empty()) {
    return parts;
  }
  for (const std::string router : {".mlp.router.", ".mlp.gate.", ".block_sparse_moe.gate."}) {
    const size_t at = name.find(router);
    if (at == std::string::npos) continue;
    const std::string gate = name.substr(0, at) + ".block_sparse_moe.gate.",
                      end = name.substr(at + router.size());
    std::vector<MadeTensor> made = {{gate + end, {name}}};
    if (end == "weight") {
      made.push_back({gate + "e_score_correction_bias",
                      {name},
                      [](const std::vector<at::Tensor>& t) { return at::zeros({t[0].size(0)}); }});
    }
    return made;
  }
  return {};
}

// What Qwen's files call a tensor, and gpt-oss' where all experts' are one.
std::string shown_in_softmax_experts(const std::string& name) {
  const std::string qwens = renamed(FileLayout::softmax_experts, name, /*to_ours=*/false);
  const size_t at = name.find(".block_sparse_moe.");
  if (at == std::string::npos) return qwens;
  const bool is_router = name.find(".gate.", at) != std::string::npos,
             is_down = name.find(".w2.", at) != std::string::npos;
  return fmt::format("{} (of gpt-oss: {}.mlp.{})", qwens, name.substr(0, at),
                     is_router ? "router"
                     : is_down ? "experts.down_proj"
                               : "experts.gate_up_proj");
}

std::vector<int64_t> without_ones(std::vector<int64_t> shape) {
  std::erase(shape, 1);
  return shape;
}

}  // namespace

std::string name_in_layout(FileLayout layout, std::string name) {
  return renamed(layout, std::move(name), /*to_ours=*/false);
}

// Names of the file's tensors, for messages.
std::string shown_names(const std::vector<std::string>& names) {
  return one_line(fmt::format("{}", fmt::join(names, " and ")));
}

NamedWeights::NamedWeights(const TensorFiles& weights, const StoredConfig& stored)
    : weights_(weights), layout_(stored.layout) {
  const FileLayout layout = layout_;
  std::set<std::string> joined;  // names of the file that are told by another's, or left out
  const std::vector<std::string> names = weights.names();
  for (const std::string& name : names) {
    if (leave_out(our_name(layout, name), stored)) {
      joined.insert(name);
      continue;
    }
    if (const auto made = made_of_quantized(name, weights)) {
      joined.insert(made->of.begin(), made->of.end());
      add({our_name(layout, made->name), made->of, made->make, made->packed});
      continue;
    }
    if (const auto from = of_retrofit(name)) {
      joined.insert(name);
      add(made_of_retrofit(*from, stored.model.sublayers(), name));
      continue;
    }
    if (layout == FileLayout::softmax_experts) {
      for (const MadeTensor& made : made_of_softmax_experts(name, weights)) {
        joined.insert(made.of.begin(), made.of.end());
        add({our_name(layout, made.name), made.of, made.make, made.packed});
      }
      continue;
    }
    for (const MadeTensor& made : made_of_mlx_tensor(name, weights.info(name).shape)) {
      joined.insert(made.of.begin(), made.of.end());
      add({our_name(layout, made.name), made.of, made.make});
    }
  }
  for (const std::string& name : names) {
    if (!joined.contains(name)) add(made_of_heads(name, our_name(layout, name), stored));
  }
}

bool NamedWeights::leave_out(const std::string& name, const StoredConfig& stored) {
  const bool of_images = is_of_images(name);
  const bool of_further_tokens = !of_images && is_of_further_tokens(name, stored);
  of_images_ += of_images ? 1 : 0;
  of_further_tokens_ += of_further_tokens ? 1 : 0;
  return of_images || of_further_tokens;
}

MadeTensor NamedWeights::made_of_heads(const std::string& name, const std::string& ours,
                                       const StoredConfig& stored) {
  MadeTensor made{ours, {name}};
  const bool is_kimi =
      stored.layout == FileLayout::kimi_linear || stored.layout == FileLayout::kimi_k3;
  if (!is_kimi || !ours.ends_with(kDecays)) return made;
  const std::vector<int64_t> shape = without_ones(weights_.info(name).shape);
  const int64_t heads = stored.model.settings<DeltaAttentionSettings>().heads;
  if (shape.size() != 1 || shape[0] <= heads) return made;
  made.make = [heads](const std::vector<at::Tensor>& t) {
    return t[0].flatten().narrow(0, 0, heads);
  };
  longer_ = fmt::format("of A_log's {} numbers the first {}, one for each head, are read", shape[0],
                        heads);
  return made;
}

std::string NamedWeights::note() const {
  std::vector<std::string> parts;
  const auto add_part = [&](int64_t count, const char* of) {
    if (count > 0) parts.push_back(fmt::format("{} of {}", counted(count, "tensor"), of));
  };
  add_part(of_images_, "images or sound");
  add_part(of_further_tokens_, "layers that predict further tokens");
  std::string text;
  if (!parts.empty()) {
    text = fmt::format("{} {} not read", fmt::join(parts, " and "),
                       of_images_ + of_further_tokens_ == 1 ? "is" : "are");
  }
  if (!longer_.empty()) text += (text.empty() ? "" : "; ") + longer_;
  return text.empty() ? "" : weights_.what() + ": " + text;
}

void NamedWeights::add(const MadeTensor& made) {
  TensorInfo info = weights_.info(made.of[0]);
  if (made.make) {
    std::vector<at::Tensor> without_data;
    for (const std::string& name : made.of) {
      const TensorInfo& of = weights_.info(name);
      without_data.push_back(at::empty(of.shape, at::TensorOptions(of.dtype).device(at::kMeta)));
    }
    try {
      const at::Tensor whole = made.make(without_data);
      info = {whole.scalar_type(), whole.sizes().vec()};
      if (made.packed) {
        const WeightBlocks& blocks = blocks_of(*made.packed);
        info.dtype = at::kFloat;
        info.shape.back() = info.shape.back() / blocks.bytes * blocks.numbers;
      }
    } catch (const c10::Error&) {
      fail("{}: {} have shapes that do not go together", weights_.what(), shown_names(made.of));
    }
  }
  const auto [entry, is_new] = entries_.emplace(made.name, Entry{made, info});
  require(is_new, "{}: {} and {} are the same tensor", weights_.what(),
          one_line(entry->second.made.of[0]), one_line(made.of[0]));
}

at::Tensor NamedWeights::made_of(const MadeTensor& made) const {
  std::vector<at::Tensor> stored;
  for (const std::string& name : made.of) stored.push_back(weights_.mapped(name));
  at::Tensor whole = made.make(stored);
  // What it is made of is looked at as it is stored, but for what is multiplied.
  const bool is_multiplied = stored[0].scalar_type() == at::kFloat8_e4m3fn && !made.packed;
  require(!is_multiplied || at::isfinite(whole).all().item<bool>(),
          "{}: {} hold numbers that are not finite (NaN or infinity): the file is damaged",
          weights_.what(), shown_names(made.of));
  return whole;
}

const std::vector<std::string>& NamedWeights::file_names(const std::string& name) const {
  return entries_.at(name).made.of;
}

std::optional<WeightFormat> NamedWeights::packed_format(const std::string& name) const {
  return entries_.at(name).made.packed;
}

bool NamedWeights::has_packed() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const auto& entry) { return entry.second.made.packed.has_value(); });
}

PackedMatrix NamedWeights::read_packed(const std::string& name) const {
  const auto& [made, info] = entries_.at(name);
  const PackedMatrix packed = {made_of(made), *made.packed, info.shape.back()};
  require(has_finite_numbers(packed),
          "{}: {} hold numbers that are not finite (NaN or infinity): the file is damaged",
          weights_.what(), shown_names(made.of));
  return packed;
}

at::Tensor NamedWeights::read(const std::string& name) const {
  const MadeTensor& made = entries_.at(name).made;
  if (made.packed) return unpack_weight(read_packed(name));
  return made.make ? made_of(made).clone() : weights_.read(made.of[0]);
}

void NamedWeights::read_into(const std::string& name, const at::Tensor& to) const {
  const MadeTensor& made = entries_.at(name).made;
  if (!made.make) return weights_.read_into(made.of[0], to);
  const at::NoGradGuard not_recording;
  if (made.packed) {
    at::Tensor(to).copy_(read(name).reshape(to.sizes()));
    return;
  }
  at::Tensor(to).copy_(made_of(made).reshape(to.sizes()));
}

std::string NamedWeights::quantized_as(const std::string& name) const {
  constexpr std::string_view kWeight = ".weight";
  if (!name.ends_with(kWeight)) return "";
  const std::string stem = name.substr(0, name.size() - kWeight.size());
  // Names of compressed-tensors, GPTQ and AWQ, FP8, mlx, bitsandbytes.
  for (const char* end : {".weight_packed", ".qweight", ".weight_scale_inv", ".weight_scale",
                          ".scales", ".SCB", ".weight.absmax"}) {
    if (contains(stem + end)) return stem + end;
  }
  return "";
}

void NamedWeights::check(const std::string& name, const std::vector<int64_t>& expected) const {
  const std::string quantized = quantized_as(name);
  require(contains(name), "{}: the tensor {} is missing{}", weights_.what(),
          layout_ == FileLayout::softmax_experts ? shown_in_softmax_experts(name) : name,
          quantized.empty() ? "" : ": the file holds it quantized, as " + one_line(quantized));
  const auto& [made, info] = entries_.at(name);
  // Their shape is of what is packed, or their numbers are divided by a scale.
  require(quantized.empty(),
          "{}: {} is quantized: {} is beside it; attnres reads FP8 in blocks and MXFP4 of "
          "compressed-tensors, else take the model that it was made from, or a GGUF file",
          weights_.what(), one_line(made.of[0]), one_line(quantized));
  const bool is_flat = name.ends_with(kDecays);
  require(is_flat ? without_ones(info.shape) == without_ones(expected) : info.shape == expected,
          "{}: {} has the shape [{}], expected [{}]", weights_.what(), shown_names(made.of),
          one_line(fmt::format("{}", fmt::join(info.shape, ", "))), fmt::join(expected, ", "));
  require(info.dtype == at::kFloat || info.dtype == at::kBFloat16 || info.dtype == at::kHalf,
          "{}: {} is stored as {}; weights are read as float32, bfloat16 or float16",
          weights_.what(), one_line(made.of[0]), stored_dtype_name(info.dtype));
}

void NamedWeights::check_all_known(const std::set<std::string>& known) const {
  for (const auto& [name, entry] : entries_) {
    require(known.contains(name) || is_ignored(name), "{}: {} is no tensor of this model",
            weights_.what(), one_line(entry.made.of[0]));
  }
}

}  // namespace attnres
