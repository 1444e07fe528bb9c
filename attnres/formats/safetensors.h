// Safetensors files: named tensors, a JSON header and raw little-endian data.
//
//   8 bytes header length N | N bytes JSON {"name": {"dtype", "shape", "data_offsets"}} | data
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attnres/support/json.h"
#include "attnres/support/mapped_file.h"

namespace attnres {

using SafetensorsMetadata = std::map<std::string, std::string>;

struct TensorInfo {
  at::ScalarType dtype;  // F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL F8_E4M3
  std::vector<int64_t> shape;
};

// As people write it: float64, bfloat16, int8.
std::string stored_dtype_name(at::ScalarType dtype);

// What the numbers of floating tensors may be.
enum class Numbers { any, finite };

// A file mapped into memory. The header is checked completely before anything else is done with
// it: offsets inside the file, as long as the shape asks for, without gaps and without overlap.
class SafetensorsFile {
 public:
  // Throws Error naming the file and what is wrong with it.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<std::string>& names() const { return names_; }  // in the order of their data
  bool contains(const std::string& name) const { return entries_.contains(name); }
  // These throw Error, with the nearest name, when there is no such tensor.
  const TensorInfo& info(const std::string& name) const;
  at::Tensor read(const std::string& name) const;  // a copy on the CPU, in the file's dtype
  // The numbers where they lie in the file, which must outlive them, or a copy where they are not
  // aligned there. Not to be written to.
  at::Tensor mapped(const std::string& name) const;
  // Fills `to`, which is on the CPU, converting the numbers to its dtype; throws Error, too, where
  // it has not as many.
  void read_into(const std::string& name, const at::Tensor& to) const;

  const SafetensorsMetadata& metadata() const { return metadata_; }
  uint64_t data_bytes() const { return data_.size(); }
  // Compares the data with the checksum that write_safetensors left. False when the file has none;
  // throws Error when the data was damaged and, in the same pass, when `numbers` are to be finite
  // and a tensor holds NaN or infinity.
  bool verify_checksum(Numbers numbers = Numbers::any) const;
  // As of MappedFile.
  void release_pages() const { map_->release_pages(); }

 private:
  struct Entry {
    TensorInfo info;
    uint64_t begin, end;  // in the data
  };
  const Entry& entry(const std::string& name) const;
  void parse_header(std::string_view text);
  Entry parse_entry(const std::string& name, const Json& json) const;

  std::string path_;
  std::unique_ptr<const MappedFile> map_;
  std::string_view data_;
  std::map<std::string, Entry> entries_;
  std::vector<std::string> names_;
  SafetensorsMetadata metadata_;
};

// Metadata key of the checksum: 16 hexadecimal digits of h, where h starts at 0 and for every 8
// bytes w of a tensor (little-endian; the last ones filled up with zeros), in file order:
// h = (h ^ w) * 0x9e3779b97f4a7c15 mod 2^64, then h ^= h >> 32. Damage within any 8 bytes is
// always found, other damage missed with probability 2^-64.
inline constexpr const char* kSafetensorsChecksum = "attnres_checksum";

// Writes aside, flushes to the disk, then renames: the file is whole or not there. Tensors may lie
// on any device and need not be contiguous; they are stored by falling element size, so that each
// is aligned. Throws Error on duplicate names, an unsupported dtype, numbers that are not what
// `numbers` says, a full disk.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       SafetensorsMetadata metadata = {}, Numbers numbers = Numbers::any);

}  // namespace attnres
