#include "attnres/formats/safetensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/nearest.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kLongestHeader = 100'000'000;  // the format's own limit
constexpr const char* kMetadataKey = "__metadata__";

struct Dtype {
  const char* name;
  at::ScalarType type;
  uint64_t bytes;
  const char* written;  // by people
};
constexpr Dtype kDtypes[] = {
    {"F64", at::kDouble, 8, "float64"},
    {"F32", at::kFloat, 4, "float32"},
    {"F16", at::kHalf, 2, "float16"},
    {"BF16", at::kBFloat16, 2, "bfloat16"},
    {"I64", at::kLong, 8, "int64"},
    {"I32", at::kInt, 4, "int32"},
    {"I16", at::kShort, 2, "int16"},
    {"I8", at::kChar, 1, "int8"},
    {"U8", at::kByte, 1, "uint8"},
    {"BOOL", at::kBool, 1, "bool"},
    {"F8_E4M3", at::kFloat8_e4m3fn, 1, "float8_e4m3fn"},
};

const Dtype* find_dtype(const std::string& name) {
  for (const Dtype& dtype : kDtypes) {
    if (name == dtype.name) return &dtype;
  }
  return nullptr;
}

const Dtype* find_dtype(at::ScalarType type) {
  for (const Dtype& dtype : kDtypes) {
    if (type == dtype.type) return &dtype;
  }
  return nullptr;
}

std::string known_dtypes() {
  std::string names;
  for (const Dtype& dtype : kDtypes) names += fmt::format(" {}", dtype.name);
  return names;
}

// The numbers that 8 bytes hold, side by side: a number is NaN or infinite where all bits of its
// exponent are set, and then adding 1 to the exponent carries into the sign.
struct FloatingWord {
  uint64_t exponents = 0, ones = 0, signs = 0;  // zeros for types without NaN

  static FloatingWord of(at::ScalarType dtype) {
    switch (dtype) {
      case at::kDouble:
        return {0x7ff0'0000'0000'0000, 0x0010'0000'0000'0000, 0x8000'0000'0000'0000};
      case at::kFloat:
        return {0x7f80'0000'7f80'0000, 0x0080'0000'0080'0000, 0x8000'0000'8000'0000};
      case at::kBFloat16:
        return {0x7f80'7f80'7f80'7f80, 0x0080'0080'0080'0080, 0x8000'8000'8000'8000};
      case at::kHalf:
        return {0x7c00'7c00'7c00'7c00, 0x0400'0400'0400'0400, 0x8000'8000'8000'8000};
      default:
        return {};
    }
  }

  // Not 0 where a number of the word is not finite.
  uint64_t not_finite(uint64_t word) const { return ((word & exponents) + ones) & signs; }
};

// One pass over tensors: their checksum, and whether their numbers are finite.
class Checksum {
 public:
  // Returns whether all numbers are finite.
  bool add(const void* data, uint64_t bytes, at::ScalarType dtype) {
    const FloatingWord floating = FloatingWord::of(dtype);
    uint64_t not_finite = 0;
    const char* p = static_cast<const char*>(data);
    for (; bytes >= 8; p += 8, bytes -= 8) not_finite |= floating.not_finite(add_word(p, 8));
    if (bytes > 0) not_finite |= floating.not_finite(add_word(p, bytes));
    return not_finite == 0;
  }
  std::string hex() const { return fmt::format("{:016x}", hash_); }

 private:
  uint64_t add_word(const char* p, size_t bytes) {
    uint64_t word = 0;
    std::memcpy(&word, p, bytes);
    hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15ULL;
    hash_ ^= hash_ >> 32;
    return word;
  }
  uint64_t hash_ = 0;
};

// What a file that is not safetensors looks like to be, with advice; empty if unknown.
std::string other_format(std::string_view start) {
  if (start.starts_with("PK\x03\x04") || start.starts_with("\x80\x02")) {
    return "this is a PyTorch pickle, not safetensors: convert it with python -c \"import sys, "
           "torch, safetensors.torch as s; s.save_file(torch.load(sys.argv[1], weights_only=True), "
           "sys.argv[2])\" model.bin model.safetensors";
  }
  if (start.starts_with("version https://git-lfs")) {
    return "this is a Git LFS pointer, not the file itself: fetch it with git lfs pull";
  }
  if (start.starts_with("GGUF")) return "this is a GGUF file, not safetensors";
  return "";
}

// The whole numbers of a JSON list; nothing if it is anything else, or one is negative.
std::optional<std::vector<int64_t>> whole_numbers(const Json& object, const char* key) {
  const auto list = object.find(key);
  if (list == object.end() || !list->is_array()) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const Json& number : *list) {
    const auto whole = whole_number(number);
    if (!whole || *whole < 0) return std::nullopt;
    numbers.push_back(*whole);
  }
  return numbers;
}

[[noreturn]] void fail_not_finite(const std::string& file, const std::string& name) {
  fail(
      "{}: {} holds numbers that are not finite (NaN or infinity): its training diverged, or they "
      "do not fit into the type that they are stored in",
      file, one_line(name));
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  return tensor.detach().cpu().contiguous();
}

}  // namespace

std::string stored_dtype_name(at::ScalarType dtype) {
  const Dtype* known = find_dtype(dtype);
  return known == nullptr ? c10::toString(dtype) : known->written;
}

SafetensorsFile::SafetensorsFile(const fs::path& path)
    : path_(path.string()), map_(std::make_unique<MappedFile>(path)) {
  const std::string_view whole = map_->whole();
  const uint64_t size = whole.size();
  const bool has_length = size >= kLengthBytes;
  uint64_t length = 0;
  if (has_length) std::memcpy(&length, whole.data(), kLengthBytes);
  const bool fits = has_length && length <= size - kLengthBytes;
  const bool plausible = fits && length > 0 && whole[kLengthBytes] == '{';
  const std::string other = other_format(whole);
  require(plausible || other.empty(), "{}: {}", path_, other);
  require(has_length, "{}: {} bytes, too short for a safetensors file", path_, size);
  require(fits,
          "{}: says that its header has {} bytes, but only {} follow; the file is truncated or not "
          "safetensors",
          path_, length, size - kLengthBytes);
  require(length <= kLongestHeader, "{}: a header of {} bytes, the format allows {}", path_, length,
          kLongestHeader);
  data_ = whole.substr(kLengthBytes + length);
  parse_header(whole.substr(kLengthBytes, length));
}

void SafetensorsFile::parse_header(std::string_view text) {
  const Json header = parse_json(text, path_ + ": the header");
  require(header.is_object(), "{}: the header is not a JSON object", path_);
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataKey) {
      require(value.is_object(), "{}: {} is not a JSON object", path_, kMetadataKey);
      for (const auto& [key, item] : value.items()) {
        require(item.is_string(), "{}: {}.{} is not text", path_, kMetadataKey, one_line(key));
        metadata_[key] = item.get<std::string>();
      }
    } else {
      entries_[name] = parse_entry(name, value);
      names_.push_back(name);
    }
  }

  // In the order of their data, each tensor must begin where the one before ended.
  const auto range = [this](const std::string& name) {
    const Entry& entry = entries_.at(name);
    return std::pair(entry.begin, entry.end);
  };
  std::stable_sort(names_.begin(), names_.end(),
                   [&](const std::string& a, const std::string& b) { return range(a) < range(b); });
  uint64_t end = 0;
  for (const std::string& name : names_) {
    const auto [begin, next_end] = range(name);
    require(begin >= end, "{}: tensor {} begins at byte {} of the data, inside the one before",
            path_, one_line(name), begin);
    require(begin == end, "{}: the {} bytes before tensor {} belong to no tensor", path_,
            begin - end, one_line(name));
    end = next_end;
  }
  require(end == data_.size(), "{}: {} bytes after the last tensor belong to no tensor", path_,
          data_.size() - end);
}

SafetensorsFile::Entry SafetensorsFile::parse_entry(const std::string& name,
                                                    const Json& json) const {
  const std::string shown_name = one_line(name);
  require(json.is_object(), "{}: tensor {}: its entry is not a JSON object", path_, shown_name);
  const auto dtype_name = json.find("dtype");
  require(dtype_name != json.end() && dtype_name->is_string(), "{}: tensor {}: no dtype", path_,
          shown_name);
  const Dtype* dtype = find_dtype(dtype_name->get<std::string>());
  require(dtype != nullptr, "{}: tensor {}: unknown dtype {}; known are{}", path_, shown_name,
          one_line(dtype_name->get<std::string>()), known_dtypes());
  const auto shape = whole_numbers(json, "shape");
  require(shape.has_value(), "{}: tensor {}: its shape is not a list of whole numbers, 0 or more",
          path_, shown_name);
  const auto offsets = whole_numbers(json, "data_offsets");
  require(offsets.has_value() && offsets->size() == 2,
          "{}: tensor {}: its data_offsets are not two whole numbers", path_, shown_name);

  const std::string shown_shape = one_line(fmt::format("{}", fmt::join(*shape, ", ")));
  uint64_t bytes = dtype->bytes;
  for (const int64_t size : *shape) {
    // As if none were 0: steps from row to row have to be numbers, too.
    require(
        !__builtin_mul_overflow(bytes, std::max<uint64_t>(size, 1), &bytes) && bytes <= INT64_MAX,
        "{}: tensor {}: its shape [{}] is larger than any memory", path_, shown_name, shown_shape);
  }
  if (std::find(shape->begin(), shape->end(), 0) != shape->end()) bytes = 0;
  const auto begin = static_cast<uint64_t>((*offsets)[0]);
  const auto end = static_cast<uint64_t>((*offsets)[1]);
  require(begin <= end && end <= data_.size(),
          "{}: tensor {}: bytes {} to {} lie outside the data, which has {}; the file is truncated",
          path_, shown_name, begin, end, data_.size());
  require(end - begin == bytes, "{}: tensor {}: {} [{}] takes {} bytes, but {} are given to it",
          path_, shown_name, dtype->name, shown_shape, bytes, end - begin);
  return {{dtype->type, *shape}, begin, end};
}

const SafetensorsFile::Entry& SafetensorsFile::entry(const std::string& name) const {
  const auto it = entries_.find(name);
  if (it == entries_.end()) {
    fail("{}: no tensor {}; the nearest name of {} is '{}'", path_, one_line(name), names_.size(),
         one_line(nearest(name, names_)));
  }
  return it->second;
}

const TensorInfo& SafetensorsFile::info(const std::string& name) const {
  return entry(name).info;
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const TensorInfo& stored = info(name);
  const at::Tensor tensor = at::empty(stored.shape, stored.dtype);
  read_into(name, tensor);
  return tensor;
}

at::Tensor SafetensorsFile::mapped(const std::string& name) const {
  const Entry& from = entry(name);
  const std::string_view bytes = data_.substr(from.begin, from.end - from.begin);
  // Only read from, though libtorch has no tensors of constants.
  void* data = const_cast<char*>(bytes.data());
  at::Tensor stored = at::from_blob(data, from.info.shape, from.info.dtype);
  // Files of other programs need not align what they hold.
  if (!bytes.empty() && reinterpret_cast<uintptr_t>(data) % stored.element_size() != 0) {
    stored = at::empty(from.info.shape, from.info.dtype);
    std::memcpy(stored.mutable_data_ptr(), data, bytes.size());
  }
  return stored;
}

void SafetensorsFile::read_into(const std::string& name, const at::Tensor& to) const {
  const at::Tensor stored = mapped(name);
  require(stored.numel() == to.numel(), "{}: {} has {} numbers, expected {}", path_, one_line(name),
          stored.numel(), to.numel());
  if (stored.numel() == 0) return;
  const at::NoGradGuard not_recording;
  to.copy_(stored.view(to.sizes()));
}

bool SafetensorsFile::verify_checksum(Numbers numbers) const {
  const auto stored = metadata_.find(kSafetensorsChecksum);
  const bool has_checksum = stored != metadata_.end();
  if (!has_checksum && numbers == Numbers::any) return false;
  Checksum checksum;
  const std::string* not_finite = nullptr;
  for (const std::string& name : names_) {
    const Entry& of = entries_.at(name);
    const bool finite = checksum.add(data_.data() + of.begin, of.end - of.begin, of.info.dtype);
    if (!finite && not_finite == nullptr) not_finite = &name;
  }
  require(!has_checksum || checksum.hex() == stored->second,
          "{}: damaged: the checksum of its tensors is {}, but {} was written; restore the file "
          "from a copy",
          path_, checksum.hex(), has_checksum ? stored->second : "");
  if (numbers == Numbers::finite && not_finite != nullptr) fail_not_finite(path_, *not_finite);
  return has_checksum;
}

void write_safetensors(const fs::path& path,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       SafetensorsMetadata metadata, Numbers numbers) {
  struct Item {
    const std::string* name;
    const at::Tensor* tensor;
    const Dtype* dtype;
  };
  std::vector<Item> items;
  for (const auto& [name, tensor] : tensors) {
    require(tensor.defined(), "{}: tensor {} is undefined", path.string(), name);
    const Dtype* dtype = find_dtype(tensor.scalar_type());
    require(dtype != nullptr, "{}: tensor {}: dtype {} has no name in this format; known are{}",
            path.string(), name, stored_dtype_name(tensor.scalar_type()), known_dtypes());
    items.push_back({&name, &tensor, dtype});
  }
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.dtype->bytes > b.dtype->bytes; });

  Checksum checksum;
  Json entries = Json::object();
  std::set<std::string_view> names = {kMetadataKey};
  int64_t end = 0;
  for (const auto& [name, tensor, dtype] : items) {
    require(names.insert(*name).second, "{}: two tensors are named {}", path.string(), *name);
    const int64_t begin = end;
    end += static_cast<int64_t>(tensor->nbytes());
    entries.push_back({*name,
                       {{"dtype", dtype->name},
                        {"shape", tensor->sizes().vec()},
                        {"data_offsets", {begin, end}}}});
    const at::Tensor data = on_cpu(*tensor);
    const bool finite = checksum.add(data.const_data_ptr(), data.nbytes(), dtype->type);
    if (numbers == Numbers::finite && !finite) fail_not_finite(path.string(), *name);
  }
  metadata[kSafetensorsChecksum] = checksum.hex();
  Json header = {{kMetadataKey, metadata}};
  header.update(entries);
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  require(length <= kLongestHeader,
          "{}: a header of {} bytes, the format allows {}; write fewer "
          "tensors into one file",
          path.string(), length, kLongestHeader);

  AtomicWriter writer(path);
  writer.write(&length, kLengthBytes);
  writer.write(text.data(), text.size());
  for (const Item& item : items) {
    const at::Tensor data = on_cpu(*item.tensor);
    writer.write(data.const_data_ptr(), data.nbytes());
  }
  writer.finish();
}

}  // namespace attnres
