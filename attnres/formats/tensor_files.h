// Named tensors of a folder: NAME.safetensors, or the shards NAME-00001-of-0000N.safetensors that
// NAME.safetensors.index.json lists, as Hugging Face's programs read and write them.
//
//   {"metadata": {"total_size": bytes, "attnres_checksums": {file: its checksum}},
//    "weight_map": {tensor: file}}
//
// An index with checksums, which attnres wrote, and its files say the same of every tensor, or are
// refused. Of others' the index alone decides, as in other programs: what it does not list, or
// lists in another file, is not read. Where both NAME.safetensors and such an index are there the
// one file is read, as by transformers (vLLM reads those that the index lists, mlx-lm all).
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "attnres/formats/safetensors.h"

namespace attnres {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// A model's weights; what else lies beside them has a name of its own.
inline constexpr const char* kWeights = "model";

class TensorFiles {
 public:
  // Opens every file and checks its header. Throws Error when there is none, when the index names a
  // file that is not there, is of another save or has not the tensors that it is said to have, and,
  // with checksums, when a tensor is there twice or is not listed.
  explicit TensorFiles(const std::filesystem::path& folder, const std::string& name = kWeights);

  // The file that was asked for: names all of them in errors.
  const std::string& what() const { return what_; }
  // What lies there and is not read, for people: a sentence each.
  const std::vector<std::string>& notes() const { return notes_; }
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
  // damaged, or a number in it is not what `numbers` says.
  void verify(const std::vector<std::string>& names, Numbers numbers = Numbers::finite) const;

  // As of MappedFile.
  void release_pages() const;

  // The checksum of all data, from the files' own; empty where one has none. Reads no data.
  std::string checksum() const;

 private:
  void open_shards(const std::filesystem::path& folder, const std::filesystem::path& index);
  void compare_with_index(const std::map<std::string, size_t>& shard_of_file, bool is_ours);
  const SafetensorsFile& shard(const std::string& name) const;

  std::string what_;
  std::vector<std::string> notes_;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, size_t> shard_of_;
};

// Whether there are such files.
bool has_tensor_files(const std::filesystem::path& folder, const std::string& name = kWeights);

// Bytes of a file, or of each shard, at most.
inline constexpr uint64_t kShardBytes = uint64_t{5} << 30;

// Which of tensors with these names and sizes go into which shard: in their order, each shard of
// at most `shard_bytes`, or of one tensor.
std::vector<std::vector<std::string>> cut_into_shards(
    const std::vector<std::pair<std::string, uint64_t>>& bytes, uint64_t shard_bytes = kShardBytes);

// Writes NAME.safetensors, or shards with an index where it would be larger than one. A tensor is
// in one shard as a whole. Throws Error, before that tensor's file is there, when a number is not
// what `numbers` says. Not atomic as a whole: see write_folder.
void write_tensor_files(const std::filesystem::path& folder, const std::string& name,
                        const NamedTensors& tensors, Numbers numbers = Numbers::finite,
                        uint64_t shard_bytes = kShardBytes);

// The same in parts, which several processes may write: shard `number` of `count`, from 1 on, and
// then, when all are there, their index. The index throws Error where one cannot be seen.
void write_shard(const std::filesystem::path& folder, const std::string& name, size_t number,
                 size_t count, const NamedTensors& tensors, Numbers numbers = Numbers::finite);
void write_shard_index(const std::filesystem::path& folder, const std::string& name, size_t count);

}  // namespace attnres
