#include "attnres/formats/tensor_files.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "attnres/formats/other_files.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/hex.h"
#include "attnres/support/json.h"
#include "attnres/support/random.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr const char* kChecksums = "attnres_checksums";  // of the index's metadata
constexpr size_t kLongestFileName = 255;                 // of any file system

std::string file_name(const std::string& name) {
  return name + ".safetensors";
}
std::string index_name(const std::string& name) {
  return name + ".safetensors.index.json";
}
std::string shard_name(const std::string& name, size_t number, size_t count) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", name, number, count);
}

// What transformers asks for of a model's files.
SafetensorsMetadata metadata_of(const std::string& name) {
  return name == kWeights ? SafetensorsMetadata{{"format", "pt"}} : SafetensorsMetadata{};
}

// Whether an index lists other files than this one, or nobody knows what.
bool lists_others(const fs::path& index, const std::string& file) {
  try {
    const Json map = read_json(index).at("weight_map");
    return std::any_of(map.begin(), map.end(), [&](const Json& of) { return of != file; });
  } catch (const Error&) {
    return true;
  } catch (const Json::exception&) {
    return true;
  }
}

// Empty where the file has none.
std::string checksum_of_file(const SafetensorsFile& file) {
  const auto checksum = file.metadata().find(kSafetensorsChecksum);
  return checksum == file.metadata().end() ? "" : checksum->second;
}

}  // namespace

TensorFiles::TensorFiles(const fs::path& folder, const std::string& name) {
  const fs::path single = folder / file_name(name), index = folder / index_name(name);
  what_ = single.string();
  if (!path_exists(single) && path_exists(index)) {
    open_shards(folder, index);
    return;
  }
  if (!path_exists(single)) {
    fail("{}: {} is missing{}", folder.string(), file_name(name),
         name == kWeights ? what_it_holds_instead(folder) : "");
  }
  if (path_exists(index) && lists_others(index, file_name(name))) {
    notes_.push_back(fmt::format(
        "{}: {} is read, as in transformers, and the files of {} beside it are not; move away what "
        "is not the model",
        folder.string(), file_name(name), index_name(name)));
  }
  shards_.emplace_back(single);
  for (const std::string& tensor : shards_[0].names()) shard_of_[tensor] = 0;
}

bool has_tensor_files(const fs::path& folder, const std::string& name) {
  return path_exists(folder / file_name(name)) || path_exists(folder / index_name(name));
}

void TensorFiles::open_shards(const fs::path& folder, const fs::path& index) {
  what_ = index.string();
  const Json json = read_json(index);
  require(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(),
          "{}: expected an object weight_map, tensors to files", what_);
  const Json metadata = json.value("metadata", Json::object());
  const Json checksums =
      metadata.is_object() ? metadata.value(kChecksums, Json::object()) : Json::object();
  std::map<std::string, size_t> shard_of_file;
  for (const auto& [name, file] : json["weight_map"].items()) {
    const std::string shard = file.is_string() ? file.get<std::string>() : "";
    const bool is_name = !shard.empty() && shard.size() <= kLongestFileName &&
                         shard.find_first_of(std::string_view("/\0", 2)) == shard.npos;
    require(is_name, "{}: {}: expected the name of a file beside it, got {}", what_, one_line(name),
            shown(file));
    const auto [entry, is_new] = shard_of_file.try_emplace(shard, shards_.size());
    if (is_new) {
      const fs::path path = folder / entry->first;
      require(path_exists(path), "{}: it lists {}, which is missing; restore it from a copy", what_,
              one_line(shard));
      shards_.emplace_back(path);
      require(!checksums.contains(shard) || checksums[shard] == checksum_of_file(shards_.back()),
              "{}: {} is of another save than this index; put the files of one save together",
              what_, one_line(shard));
    }
    require(shards_[entry->second].contains(name),
            "{}: it says that {} holds {}, which it does not", what_, one_line(shard),
            one_line(name));
    shard_of_[name] = entry->second;
  }
  compare_with_index(shard_of_file, /*is_ours=*/!checksums.empty());
}

void TensorFiles::compare_with_index(const std::map<std::string, size_t>& shard_of_file,
                                     bool is_ours) {
  int64_t unlisted = 0, elsewhere = 0;
  for (const auto& [file, shard] : shard_of_file) {
    for (const std::string& name : shards_[shard].names()) {
      const auto listed = shard_of_.find(name);
      const bool is_listed = listed != shard_of_.end();
      if (is_listed && listed->second == shard) continue;
      require(is_listed || !is_ours, "{}: {} holds {}, which the index does not list", what_,
              one_line(file), one_line(name));
      require(!is_ours, "{}: {} is there twice, in {} too", what_, one_line(name), one_line(file));
      ++(is_listed ? elsewhere : unlisted);
    }
  }
  if (unlisted + elsewhere == 0) return;
  notes_.push_back(fmt::format(
      "{}: {} of its files {} not read: {} that it does not list, {} that it lists in another file",
      what_, counted(unlisted + elsewhere, "tensor"), unlisted + elsewhere == 1 ? "is" : "are",
      unlisted, elsewhere));
}

std::vector<std::string> TensorFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [name, shard] : shard_of_) names.push_back(name);
  return names;
}

const SafetensorsFile& TensorFiles::shard(const std::string& name) const {
  const auto found = shard_of_.find(name);
  require(found != shard_of_.end(), "{}: the tensor {} is missing", what_, one_line(name));
  return shards_[found->second];
}

void TensorFiles::verify(const std::vector<std::string>& names, Numbers numbers) const {
  std::set<const SafetensorsFile*> files;
  for (const std::string& name : names) files.insert(&shard(name));
  for (const SafetensorsFile* file : files) file->verify_checksum(numbers);
}

void TensorFiles::release_pages() const {
  for (const SafetensorsFile& shard : shards_) shard.release_pages();
}

std::string TensorFiles::checksum() const {
  if (shards_.size() == 1) return checksum_of_file(shards_[0]);
  std::string all;
  for (const SafetensorsFile& file : shards_) {
    const std::string checksum = checksum_of_file(file);
    if (checksum.empty()) return "";
    all += checksum;
  }
  return hex(hash_bytes(all));
}

std::vector<std::vector<std::string>> cut_into_shards(
    const std::vector<std::pair<std::string, uint64_t>>& bytes, uint64_t shard_bytes) {
  std::vector<std::vector<std::string>> shards;
  uint64_t in_shard = 0;
  for (const auto& [name, size] : bytes) {
    if (shards.empty() || (in_shard > 0 && in_shard + size > shard_bytes)) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(name);
    in_shard += size;
  }
  return shards;
}

void write_tensor_files(const fs::path& folder, const std::string& name,
                        const NamedTensors& tensors, Numbers numbers, uint64_t shard_bytes) {
  std::vector<std::pair<std::string, uint64_t>> bytes;
  for (const auto& [tensor, value] : tensors) bytes.emplace_back(tensor, value.nbytes());
  const auto shards = cut_into_shards(bytes, shard_bytes);
  if (shards.size() <= 1) {
    write_safetensors(folder / file_name(name), tensors, metadata_of(name), numbers);
    return;
  }
  auto next = tensors.begin();
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto end = next + static_cast<int64_t>(shards[i].size());
    write_shard(folder, name, i + 1, shards.size(), NamedTensors(next, end), numbers);
    next = end;
  }
  write_shard_index(folder, name, shards.size());
}

void write_shard(const fs::path& folder, const std::string& name, size_t number, size_t count,
                 const NamedTensors& tensors, Numbers numbers) {
  write_safetensors(folder / shard_name(name, number, count), tensors, metadata_of(name), numbers);
}

void write_shard_index(const fs::path& folder, const std::string& name, size_t count) {
  Json map = Json::object(), checksums = Json::object();
  uint64_t total = 0;
  for (size_t number = 1; number <= count; ++number) {
    const std::string file = shard_name(name, number, count);
    const SafetensorsFile shard(folder / file);
    checksums[file] = checksum_of_file(shard);
    for (const std::string& tensor : shard.names()) map[tensor] = file;
    total += shard.data_bytes();
  }
  const Json index = {{"metadata", {{"total_size", total}, {kChecksums, checksums}}},
                      {"weight_map", map}};
  write_file(folder / index_name(name), index.dump(2) + "\n");
}

}  // namespace attnres
