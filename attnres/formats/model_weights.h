// The tensors of a model directory: model.safetensors, or the shards that
// model.safetensors.index.json lists.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "attnres/formats/safetensors.h"

namespace attnres {

class ModelWeights {
 public:
  // Opens and checks every file. Throws Error when there is none, when the index names a file that
  // is not there or a tensor that its file does not have, and when a tensor is there twice.
  explicit ModelWeights(const std::filesystem::path& folder);

  // The file that was asked for: names the model in errors.
  const std::string& what() const { return what_; }
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return shard_of_.contains(name); }
  // These throw Error when there is no such tensor.
  const TensorInfo& info(const std::string& name) const { return shard(name).info(name); }
  at::Tensor read(const std::string& name) const { return shard(name).read(name); }
  at::Tensor mapped(const std::string& name) const { return shard(name).mapped(name); }
  void read_into(const std::string& name, const at::Tensor& to) const {
    shard(name).read_into(name, to);
  }
  // Reads the files that hold these tensors. Throws Error when the data of one with a checksum was
  // damaged, or a number in it is not finite.
  void verify(const std::vector<std::string>& names) const;

 private:
  void open_shards(const std::filesystem::path& folder, const std::filesystem::path& index);
  const SafetensorsFile& shard(const std::string& name) const;

  std::string what_;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, size_t> shard_of_;
};

// Writes model.safetensors, or shards of at most `shard_bytes` with an index where it would be
// larger. A tensor is in one shard as a whole. Throws Error, before that tensor's file is there,
// when a number is not finite. Not atomic as a whole: see write_folder.
void write_model_weights(const std::filesystem::path& folder,
                         const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                         uint64_t shard_bytes = uint64_t{5} << 30);

}  // namespace attnres
