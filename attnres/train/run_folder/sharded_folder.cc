#include "attnres/train/run_folder/sharded_folder.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "attnres/parallel/together.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/folder_writer.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

// What each rank holds, to all.
std::vector<TensorBytes> gather_held(const NamedTensors& tensors, Communicator& world) {
  TensorBytes own;
  for (const auto& [name, tensor] : tensors) own[name] = tensor.nbytes();
  std::vector<TensorBytes> held;
  for (const std::string& text : gather_texts(world, Json(own).dump())) {
    held.push_back(Json::parse(text).get<TensorBytes>());
  }
  return held;
}

// The shards of one set, of all ranks.
class SharedSet {
 public:
  SharedSet(const HeldTensors& held, Communicator& world, uint64_t shard_bytes) : held_(held) {
    const std::vector<TensorBytes> written = share_out_writing(gather_held(held.tensors, world));
    for (size_t rank = 0; rank < written.size(); ++rank) {
      const bool is_own = rank == static_cast<size_t>(world.rank());
      for (auto& shard :
           cut_into_shards({written[rank].begin(), written[rank].end()}, shard_bytes)) {
        ++shards_;
        if (is_own) own_.emplace(shards_, std::move(shard));
      }
    }
  }

  void write_own(const fs::path& folder) const {
    std::map<std::string, at::Tensor> here(held_.tensors.begin(), held_.tensors.end());
    for (const auto& [number, names] : own_) {
      NamedTensors tensors;
      for (const std::string& name : names) tensors.emplace_back(name, here.at(name));
      write_shard(folder, held_.name, number, shards_, tensors, held_.numbers);
    }
  }
  void write_index(const fs::path& folder) const { write_shard_index(folder, held_.name, shards_); }

 private:
  const HeldTensors& held_;
  size_t shards_ = 0;                               // of all ranks
  std::map<size_t, std::vector<std::string>> own_;  // tensors by the number of their shard
};

}  // namespace

std::vector<TensorBytes> share_out_writing(const std::vector<TensorBytes>& held) {
  std::map<std::string, std::vector<size_t>> holders;
  std::vector<std::pair<uint64_t, std::string>> by_size;
  for (size_t rank = 0; rank < held.size(); ++rank) {
    for (const auto& [name, bytes] : held[rank]) {
      std::vector<size_t>& ranks = holders[name];
      if (ranks.empty()) by_size.emplace_back(bytes, name);
      ranks.push_back(rank);
    }
  }
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<TensorBytes> written(held.size());
  std::vector<uint64_t> total(held.size(), 0);
  for (const auto& [bytes, name] : by_size) {
    const std::vector<size_t>& ranks = holders[name];
    const size_t writer = *std::min_element(
        ranks.begin(), ranks.end(), [&](size_t a, size_t b) { return total[a] < total[b]; });
    written[writer][name] = bytes;
    total[writer] += bytes;
  }
  return written;
}

void write_sharded_folder(const fs::path& path, const std::vector<HeldTensors>& held,
                          const std::function<void(const fs::path&)>& write_rest,
                          Communicator& world, uint64_t shard_bytes) {
  const bool leads = world.rank() == 0;
  const fs::path filling = FolderWriter::filling(path);
  std::vector<SharedSet> sets;
  for (const HeldTensors& set : held) sets.emplace_back(set, world, shard_bytes);
  std::unique_ptr<FolderWriter> writer;
  do_together(world, [&] {
    if (leads) writer = std::make_unique<FolderWriter>(path);
  });
  do_together(world, [&] {
    require(path_exists(filling),
            "{}: rank 0 has made this folder, but rank {} does not see it; all processes must see "
            "the run's folder",
            filling.string(), world.rank());
    for (const SharedSet& set : sets) set.write_own(filling);
  });
  do_together(world, [&] {
    if (!leads) return;
    for (const SharedSet& set : sets) set.write_index(filling);
    write_rest(filling);
    writer->finish();
  });
}

}  // namespace attnres
