#include "attnres/formats/gguf_load.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "attnres/formats/gguf_parts.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

using PartList = std::vector<GgufPart>;
// Which parts of the file have numbers of a parameter.
using PartsOfParameters = std::map<std::pair<int, std::string>, PartList>;

// A tied head is the embedding, which its own tensor fills.
bool is_copy_of_embedding(const GgufSitePart& placed) {
  return placed.site == kEmbeddingSite && placed.part.name == "output.weight";
}

// In the file, of a model without numbers.
std::vector<int64_t> expected_shape(const GgufSitePart& placed, const Transformer& whole) {
  std::vector<at::Tensor> of;
  for (const std::string& role : placed.part.roles) {
    of.push_back(whole.parameters().find(placed.site, role)->tensor.detach());
  }
  return placed.part.make ? placed.part.make(of).sizes().vec() : of[0].sizes().vec();
}

// Which ggml does not store where it writes a file anew.
std::vector<int64_t> without_leading_ones(std::vector<int64_t> shape) {
  const auto first = std::find_if(shape.begin(), shape.end() - 1, [](int64_t n) { return n != 1; });
  shape.erase(shape.begin(), first);
  return shape;
}

void check_shape(const GgufFile& file, const std::string& name,
                 const std::vector<int64_t>& expected) {
  require(file.contains(name), "{}: the tensor {} is missing", file.path(), name);
  const std::vector<int64_t>& shape = file.info(name).shape;
  require(without_leading_ones(shape) == without_leading_ones(expected),
          "{}: {} has the shape [{}], expected [{}]", file.path(), name, fmt::join(shape, ", "),
          fmt::join(expected, ", "));
}

// Of one of the layers behind the model's own.
bool is_of_further_layers(const std::string& name, const StoredConfig& stored) {
  for (int64_t i = 0; i < stored.further_layers; ++i) {
    if (name.starts_with(fmt::format("blk.{}.", stored.model.layers + i))) return true;
  }
  return false;
}

// That the file has every tensor of the whole model, and no other but those of layers behind it.
// Returns that model, without numbers.
Transformer check_gguf_tensors(const GgufFile& file, const GgufConfig& config,
                               const std::vector<GgufSitePart>& parts) {
  const StoredConfig& stored = config.stored;
  // Before a model of this size is planned.
  check_shape(file, "token_embd.weight", {stored.vocab_size, stored.model.width});
  Transformer whole(stored.model, stored.vocab_size, /*seed=*/std::nullopt, at::kFloat, at::kMeta);
  std::set<std::string> known;
  for (const GgufSitePart& placed : parts) {
    const std::string& name = placed.part.name;
    known.insert(name);
    const bool needed = !placed.part.roles.empty() && !is_copy_of_embedding(placed);
    if (needed || file.contains(name)) check_shape(file, name, expected_shape(placed, whole));
  }
  for (const std::string& name : file.names()) {
    if (known.contains(name) || is_of_further_layers(name, stored)) continue;
    fail("{}: {} is no tensor of a model that attnres computes", file.path(), one_line(name));
  }
  return whole;
}

PartsOfParameters by_parameter(const std::vector<GgufSitePart>& parts) {
  PartsOfParameters by_parameter;
  for (const GgufSitePart& placed : parts) {
    if (is_copy_of_embedding(placed)) continue;
    for (const std::string& role : placed.part.roles) {
      by_parameter[{placed.site, role}].push_back(placed.part);
    }
  }
  return by_parameter;
}

class GgufLoader {
 public:
  GgufLoader(const GgufFile& file, const Transformer& model) : file_(file), model_(model) {}

  void fill(const Parameter& parameter, const PartList& parts) const {
    for (const GgufPart& part : parts) file_.require_finite(part.name);
    if (!parameter.packed.defined()) {
      for (const GgufPart& part : parts) read(part, file_.numbers(part.name), of(parameter, part));
    } else if (is_stored_so(parameter.packed, parts)) {
      take_stored(parameter.packed, parts[0]);
    } else {
      pack(parameter, parts);
    }
  }

 private:
  // The tensors that the part is made of; each is filled once, with the first of them.
  std::vector<at::Tensor> of(const Parameter& parameter, const GgufPart& part) const {
    std::vector<at::Tensor> tensors;
    for (const std::string& role : part.roles) {
      tensors.push_back(model_.parameters().find(parameter.site, role)->tensor.detach());
    }
    return tensors;
  }

  void read(const GgufPart& part, const at::Tensor& stored,
            const std::vector<at::Tensor>& to) const {
    try {
      if (part.read) return part.read(stored, to);
    } catch (const Error& e) {
      fail("{}: {}: {}", file_.path(), part.name, e.what());
    }
    to[0].copy_(stored.view(to[0].sizes()));
  }

  bool is_stored_so(const PackedMatrix& packed, const PartList& parts) const {
    if (parts.size() != 1 || (parts[0].read && !parts[0].reads_rows)) return false;
    const PackedMatrix stored = file_.stored(parts[0].name);
    return stored.format == packed.format && stored.bytes.sizes() == packed.bytes.sizes();
  }

  void take_stored(const PackedMatrix& packed, const GgufPart& part) const {
    const at::Tensor stored = file_.stored(part.name).bytes;
    if (part.read) return read(part, stored, {packed.bytes});
    packed.bytes.set_(stored);
  }

  void pack(const Parameter& parameter, const PartList& parts) const {
    const bool as_it_is = parts.size() == 1 && !parts[0].read;
    if (as_it_is) return pack_weight(file_.numbers(parts[0].name), parameter.packed);
    const at::Tensor numbers = at::empty(parameter.tensor.sizes(), at::kFloat);
    for (const GgufPart& part : parts) read(part, file_.numbers(part.name), {numbers});
    pack_weight(numbers, parameter.packed);
  }

  const GgufFile& file_;
  const Transformer& model_;
};

// Gives a process's model its parts of a stage's parameters. A packed weight's bytes are cut as its
// numbers are: along inputs too, of which each part has whole blocks.
void copy_parts(const Transformer& stage, const Transformer& model) {
  for (const Parameter& whole : stage.parameters().all()) {
    const Parameter& own = *model.parameters().find(whole.site, whole.role);
    const TensorPart part = model.parameters().part();
    if (own.packed.defined()) {
      own.packed.bytes.copy_(part_of_parameter(part, own, whole.packed.bytes));
    } else {
      own.tensor.detach().copy_(part_of_parameter(part, own, whole.tensor.detach()));
    }
  }
}

}  // namespace

std::unique_ptr<Transformer> load_gguf(const GgufFile& file, const GgufConfig& config,
                                       const ModelConfig& model_config, const Precision& precision,
                                       const SiteSet& sites, const TensorGroup* group) {
  const StoredConfig& stored = config.stored;
  const std::vector<GgufSitePart> parts = gguf_parts(stored.model, config.architecture);
  const Transformer in_file = check_gguf_tensors(file, config, parts);
  const PartsOfParameters of = by_parameter(parts);
  const at::NoGradGuard not_recording;
  const auto model_of = [&](const SiteSet& of_sites, const TensorGroup* of_group) {
    return std::make_unique<Transformer>(model_config, stored.vocab_size, /*seed=*/std::nullopt,
                                         precision, at::kCPU, of_sites, of_group);
  };
  const auto load_whole = [&](const SiteSet& of_sites) {
    auto model = model_of(of_sites, nullptr);
    const GgufLoader loader(file, *model);
    for (const Parameter& parameter : model->parameters().all()) {
      const auto found = of.find({parameter.site, parameter.role});
      if (in_file.parameters().find(parameter.site, parameter.role) == nullptr) continue;
      require(found != of.end(), "{}: the file has no place for the parameter {} of site {}",
              file.path(), parameter.role, parameter.site);
      loader.fill(parameter, found->second);
    }
    return model;
  };
  if (group == nullptr) return load_whole(sites);
  auto model = model_of(sites, group);
  // Site by site, so that no more than one is there as a whole.
  for (int site = 0; site <= stored.model.sublayers(); ++site) {
    if (sites.has(site)) copy_parts(*load_whole(SiteRange{site, site + 1}), *model);
  }
  return model;
}

WeightFormats gguf_weight_formats(const GgufFile& file, const GgufConfig& config) {
  WeightFormats::OfWeights formats;
  for (const auto& [weight, parts] :
       by_parameter(gguf_parts(config.stored.model, config.architecture))) {
    const GgufPart& part = parts.front();
    if (part.storage == GgufPart::Storage::exact || !file.contains(part.name)) continue;
    const WeightFormat stored = weight_format(file.info(part.name).type);
    const bool is_kept = parts.size() == 1 && (!part.read || part.reads_rows);
    formats[weight] = is_kept || blocks_of(stored).is_packed_here ? stored : WeightFormat::q8_0;
  }
  return WeightFormats(std::move(formats));
}

}  // namespace attnres
