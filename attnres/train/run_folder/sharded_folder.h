// A folder that several processes write at once: of the tensors that they hold, each once, in
// shards (formats/tensor_files.h), and files of rank 0's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "attnres/formats/tensor_files.h"
#include "attnres/parallel/communicator.h"

namespace attnres {

// By name; their number of bytes.
using TensorBytes = std::map<std::string, uint64_t>;

// Who of several ranks writes what they hold: each tensor one of its holders, the largest first,
// each that of its holders which has least to write by then. So ranks that hold the same (replicas)
// share the writing evenly. By rank.
std::vector<TensorBytes> share_out_writing(const std::vector<TensorBytes>& held);

// What a process holds of one set of tensors, which will be NAME's files.
struct HeldTensors {
  std::string name;
  NamedTensors tensors;
  Numbers numbers = Numbers::finite;
};

// All ranks call it, with the same path and sets in the same order. A tensor that several ranks
// hold is the same on each. `write_rest` is called on rank 0 alone, with the folder in which all
// shards and their indices lie; then the folder replaces the old one in one step, as FolderWriter
// does: a process that is killed at any moment leaves the old or the new one. Each rank needs no
// memory beside its tensors but for the names of all. Throws CommonFailure on every rank where one
// could not do its part; then the old folder stands.
void write_sharded_folder(const std::filesystem::path& path, const std::vector<HeldTensors>& held,
                          const std::function<void(const std::filesystem::path&)>& write_rest,
                          Communicator& world, uint64_t shard_bytes = kShardBytes);

}  // namespace attnres
