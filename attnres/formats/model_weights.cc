#include "attnres/formats/model_weights.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <set>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
const SafetensorsMetadata kModelMetadata = {{"format", "pt"}};

}  // namespace

ModelWeights::ModelWeights(const fs::path& folder) {
  const fs::path single = folder / kWeightsFile, index = folder / kIndexFile;
  what_ = single.string();
  if (!fs::exists(single) && fs::exists(index)) {
    open_shards(folder, index);
    return;
  }
  require(fs::exists(single) || !fs::exists(folder / "pytorch_model.bin"),
          "{}: pytorch_model.bin is a pickle, which attnres does not read; save the model again "
          "with safe serialization, as {}",
          folder.string(), kWeightsFile);
  require(fs::exists(single), "{}: {} is missing", folder.string(), kWeightsFile);
  shards_.emplace_back(single);
  for (const std::string& name : shards_[0].names()) shard_of_[name] = 0;
}

void ModelWeights::open_shards(const fs::path& folder, const fs::path& index) {
  what_ = index.string();
  const Json json = read_json(index);
  require(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(),
          "{}: expected an object weight_map, tensors to files", what_);
  std::map<std::string, size_t> shard_of_file;
  for (const auto& [name, file] : json["weight_map"].items()) {
    const std::string shard = file.is_string() ? file.get<std::string>() : "";
    require(!shard.empty() && shard.find('/') == std::string::npos,
            "{}: {}: expected the name of a file beside it, got {}", what_, name, shown(file));
    const auto [entry, is_new] = shard_of_file.try_emplace(shard, shards_.size());
    if (is_new) {
      const fs::path path = folder / entry->first;
      require(fs::exists(path), "{}: it lists {}, which is missing; download the model again",
              what_, entry->first);
      shards_.emplace_back(path);
    }
    require(shards_[entry->second].contains(name),
            "{}: it says that {} holds {}, which it does not", what_, entry->first, name);
    shard_of_[name] = entry->second;
  }
  for (const auto& [file, shard] : shard_of_file) {
    for (const std::string& name : shards_[shard].names()) {
      const auto listed = shard_of_.find(name);
      require(listed != shard_of_.end(), "{}: {} holds {}, which the index does not list", what_,
              file, name);
      require(listed->second == shard, "{}: {} is there twice, in {} too", what_, name, file);
    }
  }
}

std::vector<std::string> ModelWeights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, shard] : shard_of_) names.push_back(name);
  return names;
}

const SafetensorsFile& ModelWeights::shard(const std::string& name) const {
  const auto found = shard_of_.find(name);
  require(found != shard_of_.end(), "{}: the tensor {} is missing", what_, name);
  return shards_[found->second];
}

void ModelWeights::verify(const std::vector<std::string>& names) const {
  std::set<const SafetensorsFile*> files;
  for (const std::string& name : names) files.insert(&shard(name));
  for (const SafetensorsFile* file : files) file->verify_checksum(Numbers::finite);
}

void write_model_weights(const fs::path& folder,
                         const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                         uint64_t shard_bytes) {
  std::vector<std::vector<std::pair<std::string, at::Tensor>>> shards(1);
  uint64_t in_shard = 0, total = 0;
  for (const auto& tensor : tensors) {
    const uint64_t bytes = tensor.second.nbytes();
    if (in_shard > 0 && in_shard + bytes > shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(tensor);
    in_shard += bytes;
    total += bytes;
  }
  if (shards.size() == 1) {
    write_safetensors(folder / kWeightsFile, tensors, kModelMetadata, Numbers::finite);
    return;
  }
  Json map = Json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(folder / file, shards[i], kModelMetadata, Numbers::finite);
    for (const auto& [name, tensor] : shards[i]) map[name] = file;
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_file(folder / kIndexFile, index.dump(2) + "\n");
}

}  // namespace attnres
