// GGUF files (gguf.h) to read: versions 2 and 3, mapped into memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/formats/gguf.h"
#include "attnres/parameters/packed_matrix.h"
#include "attnres/support/mapped_file.h"

namespace attnres {

// Whether this means a GGUF file: it ends in .gguf and is no folder, or it begins as they do.
// Throws Error where that cannot be seen.
bool is_gguf_file(const std::filesystem::path& path);

struct GgufTensorInfo {
  std::vector<int64_t> shape;  // slowest first
  GgufType type = GgufType::f32;
};

// All that stands before the data is checked completely before anything else is done: counts and
// strings within the file, tensors within the data, aligned as the file says (general.alignment)
// and apart from each other.
//
// Of a file that was split (gguf_split.h) this is all of it: the first part's keys, and the tensors
// of all parts.
class GgufFile {
 public:
  // Opens the file; of a split one all its parts, of which this is any. Throws Error naming the
  // file and what is wrong with it, or what is in it that is not read: big-endian numbers, arrays
  // of arrays, quantizations other than GgufType's, by their names; parts that are missing, or do
  // not belong together.
  explicit GgufFile(const std::filesystem::path& path);

  // The file, or its first part: names all of it in errors.
  const std::string& path() const { return path_; }
  size_t parts() const { return files_.size(); }
  const GgufMetadata& metadata() const { return metadata_; }  // in the file's order
  const GgufValue* find(const std::string& key) const;        // or nullptr
  // Throws Error where the key's value is of another type. `otherwise` where there is no such key.
  std::string text(const std::string& key, const std::string& otherwise) const;
  bool flag(const std::string& key, bool otherwise) const;

  const std::vector<std::string>& names() const { return names_; }  // in the file's order
  bool contains(const std::string& name) const { return entries_.contains(name); }
  // These throw Error, with the nearest name, when there is no such tensor.
  const GgufTensorInfo& info(const std::string& name) const { return entry(name).info; }
  // The tensor's bytes as they are in the file, which stays mapped while they live. Not to be
  // written to.
  PackedMatrix stored(const std::string& name) const;
  // float32, in the tensor's shape: a view where it is stored so.
  at::Tensor numbers(const std::string& name) const;
  // Throws Error naming the tensor when a number of it is NaN or infinite.
  void require_finite(const std::string& name) const;
  // What was read takes no memory of the process any more, until it is read again.
  void release_pages() const;

 private:
  class Cursor;
  struct OneFile {};
  struct Mapped {
    explicit Mapped(const std::filesystem::path& path) : path(path.string()), map(path) {}

    std::string path;
    MappedFile map;
  };
  using MappedPtr = std::shared_ptr<const Mapped>;
  struct Entry {
    GgufTensorInfo info;
    uint64_t begin = 0, bytes = 0;  // in the file's data, and then in the file
    MappedPtr file;
  };
  // The file alone, of whatever it is a part.
  GgufFile(const std::filesystem::path& path, OneFile);
  void add_part(const GgufFile& part);
  const Entry& entry(const std::string& name) const;
  template <class T>
  T value_of(const std::string& key, const T& otherwise, const char* expected) const;
  void read_metadata(Cursor& cursor, uint64_t count);
  void read_tensors(Cursor& cursor, uint64_t count);
  Entry read_entry(Cursor& cursor, const std::string& name) const;
  uint64_t alignment() const;
  void place_tensors(uint64_t header_bytes);

  std::string path_;
  std::vector<MappedPtr> files_;
  GgufMetadata metadata_;
  std::map<std::string, size_t> keys_;  // in metadata_
  std::vector<std::string> names_;
  std::map<std::string, Entry> entries_;
};

}  // namespace attnres
