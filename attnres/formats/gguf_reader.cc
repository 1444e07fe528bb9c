#include "attnres/formats/gguf_reader.h"

#include <ATen/ops/from_blob.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <type_traits>
#include <utility>

#include "attnres/formats/gguf_split.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/nearest.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kGgufMagic = "GGUF";
constexpr uint32_t kOldestVersion = 2, kNewestVersion = 3;
constexpr uint32_t kArrayType = 9;
constexpr uint32_t kMostGgufDimensions = 4;
constexpr uint64_t kUsualAlignment = 32;
constexpr const char* kAlignmentKey = "general.alignment";

// ggml's names of the numbers of types that are not read here, of those that it reads no more, too.
std::string type_name(uint32_t type) {
  static const std::map<uint32_t, const char*> names = {
      {4, "Q4_2"},    {5, "Q4_3"},        {9, "Q8_1"},        {15, "Q8_K"},       {16, "IQ2_XXS"},
      {17, "IQ2_XS"}, {18, "IQ3_XXS"},    {19, "IQ1_S"},      {21, "IQ3_S"},      {22, "IQ2_S"},
      {24, "I8"},     {25, "I16"},        {26, "I32"},        {27, "I64"},        {28, "F64"},
      {29, "IQ1_M"},  {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},   {33, "Q4_0_8_8"},   {34, "TQ1_0"},
      {35, "TQ2_0"},  {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}, {40, "NVFP4"},
      {41, "Q1_0"},   {42, "Q2_0"}};
  const auto found = names.find(type);
  return found == names.end() ? fmt::format("type {}", type) : found->second;
}

bool is_read(uint32_t type) {
  return std::any_of(kGgufStorages.begin(), kGgufStorages.end(), [&](const GgufStorage& known) {
    return type == static_cast<uint32_t>(known.type);
  });
}

// What a file that is not GGUF looks like to be.
std::string gguf_lookalike(std::string_view start) {
  if (start.starts_with("version https://git-lfs")) {
    return ": it is a Git LFS pointer; fetch the file itself with git lfs pull";
  }
  if (start.starts_with("GGML") || start.starts_with("lmgg") || start.starts_with("tjgg")) {
    return ": it is of a format before GGUF; convert the model again";
  }
  return "";
}

}  // namespace

// Takes values one after the other; throws Error where the file has fewer bytes.
class GgufFile::Cursor {
 public:
  Cursor(std::string_view whole, const std::string& path) : whole_(whole), path_(path) {}

  uint64_t at() const { return at_; }

  std::string_view bytes(uint64_t count) {
    if (count > whole_.size() - at_) fail_truncated();
    at_ += count;
    return whole_.substr(at_ - count, count);
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string text() {
    const auto length = number<uint64_t>();
    return std::string(bytes(length));
  }
  // A number of things of at least `bytes` each. Throws where the file cannot hold as many.
  uint64_t count(uint64_t number, uint64_t bytes, const char* things) const {
    require(number <= (whole_.size() - at_) / bytes,
            "{}: says that it has {} {}, which do not fit into it; it is truncated or damaged",
            path_, number, things);
    return number;
  }
  GgufValue value(const std::string& key) {
    const auto type = number<uint32_t>();
    if (type != kArrayType)
      return value_of<GgufValue>(type, key, std::make_index_sequence<kScalars>());
    const auto inner = number<uint32_t>();
    require(inner != kArrayType, "{}: {}: arrays of arrays are not read, in ggml neither", path_,
            one_line(key));
    return value_of<GgufValue>(inner, key, std::make_index_sequence<kScalars>(), kScalars);
  }

 private:
  static constexpr size_t kScalars = std::variant_size_v<GgufValue> / 2;

  // That of the variant's types whose number this is, or its array.
  template <class Variant, size_t... I>
  GgufValue value_of(uint32_t type, const std::string& key, std::index_sequence<I...>,
                     size_t offset = 0) {
    GgufValue value;
    const auto read = [&]<size_t place>(std::integral_constant<size_t, place>) {
      if (type != (place < kArrayType ? place : place + 1)) return false;
      using T = std::variant_alternative_t<place, Variant>;
      if (offset == 0) {
        value.emplace<place>(one<T>(key));
      } else {
        value.emplace<place + kScalars>(list<T>(key));
      }
      return true;
    };
    require((read(std::integral_constant<size_t, I>()) || ...),
            "{}: {}: its value is of the unknown type {}; the file is damaged or of a later format",
            path_, one_line(key), type);
    return value;
  }
  template <class T>
  T one(const std::string& key) {
    if constexpr (std::is_same_v<T, std::string>) {
      return text();
    } else if constexpr (std::is_same_v<T, bool>) {
      const auto byte = number<uint8_t>();
      require(byte <= 1, "{}: {}: expected 0 or 1 for false or true, got {}", path_, one_line(key),
              byte);
      return byte == 1;
    } else {
      return number<T>();
    }
  }
  template <class T>
  std::vector<T> list(const std::string& key) {
    constexpr bool is_text = std::is_same_v<T, std::string>;
    const auto length = number<uint64_t>();
    count(length, is_text ? sizeof(uint64_t) : sizeof(T), "values in an array");
    std::vector<T> values;
    for (uint64_t i = 0; i < length; ++i) values.push_back(one<T>(key));
    return values;
  }

  [[noreturn]] void fail_truncated() const {
    fail("{}: ends within its header, after {} bytes: it is truncated or damaged", path_,
         whole_.size());
  }

  std::string_view whole_;
  const std::string& path_;
  uint64_t at_ = 0;
};

bool is_gguf_file(const fs::path& path) {
  if (path_exists(path) && fs::is_directory(path)) return false;
  if (path.extension() == ".gguf") return true;
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return false;
  std::string start(kGgufMagic.size(), '\0');
  std::ifstream(path, std::ios::binary).read(start.data(), static_cast<int64_t>(start.size()));
  return start == kGgufMagic;
}

GgufFile::GgufFile(const fs::path& path) : GgufFile(path, OneFile()) {
  const GgufSplit split = read_gguf_split(*this);
  if (split.is_whole()) return;
  const std::vector<fs::path> files = gguf_part_files(path, split);
  if (split.number > 0) *this = GgufFile(files[0], OneFile());
  require_gguf_part(*this, 0, split);
  for (int64_t number = 1; number < split.count; ++number) {
    const GgufFile part(files[number], OneFile());
    require_gguf_part(part, number, split);
    add_part(part);
  }
  require(std::ssize(names_) == split.tensors,
          "{}: its {} parts have {} tensors, but the model was split with {}; put the parts of one "
          "split together",
          path_, split.count, names_.size(), split.tensors);
}

void GgufFile::add_part(const GgufFile& part) {
  for (const std::string& name : part.names_) {
    const auto [entry, is_new] = entries_.emplace(name, part.entry(name));
    require(is_new, "{}: the tensor {} is in {} too; put the parts of one split together",
            part.path_, one_line(name), entry->second.file->path);
    names_.push_back(name);
  }
  files_.insert(files_.end(), part.files_.begin(), part.files_.end());
}

GgufFile::GgufFile(const fs::path& path, OneFile)
    : path_(path.string()), files_({std::make_shared<Mapped>(path)}) {
  const std::string_view whole = files_[0]->map.whole();
  require(whole.starts_with(kGgufMagic), "{}: is not a GGUF file{}", path_, gguf_lookalike(whole));
  Cursor cursor(whole, path_);
  cursor.bytes(kGgufMagic.size());
  const auto version = cursor.number<uint32_t>();
  require(version == 0 || (version & 0xffff) != 0,
          "{}: is a big-endian GGUF file; convert the model again on a little-endian machine",
          path_);
  require(version >= kOldestVersion && version <= kNewestVersion,
          "{}: is of version {} of GGUF; versions {} to {} are read, convert the model again",
          path_, version, kOldestVersion, kNewestVersion);
  constexpr uint64_t kLeastTensorBytes = 8 + 4 + 8 + 4 + 8, kLeastKeyBytes = 8 + 4 + 1;
  const auto tensors = cursor.number<uint64_t>(), keys = cursor.number<uint64_t>();
  read_metadata(cursor, cursor.count(keys, kLeastKeyBytes, "keys"));
  read_tensors(cursor, cursor.count(tensors, kLeastTensorBytes, "tensors"));
  place_tensors(cursor.at());
}

void GgufFile::read_metadata(Cursor& cursor, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    std::string key = cursor.text();
    require(keys_.emplace(key, metadata_.size()).second, "{}: the key {} is there twice", path_,
            one_line(key));
    GgufValue value = cursor.value(key);
    metadata_.emplace_back(std::move(key), std::move(value));
  }
}

void GgufFile::read_tensors(Cursor& cursor, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const std::string name = cursor.text();
    require(!entries_.contains(name), "{}: the tensor {} is there twice", path_, one_line(name));
    entries_[name] = read_entry(cursor, name);
    names_.push_back(name);
  }
}

GgufFile::Entry GgufFile::read_entry(Cursor& cursor, const std::string& name) const {
  const auto dimensions = cursor.number<uint32_t>();
  require(dimensions >= 1 && dimensions <= kMostGgufDimensions,
          "{}: tensor {}: has {} dimensions, expected 1 to {}", path_, one_line(name), dimensions,
          kMostGgufDimensions);
  std::vector<uint64_t> sizes(dimensions);  // fastest first
  for (uint64_t& size : sizes) size = cursor.number<uint64_t>();
  const auto type = cursor.number<uint32_t>();
  require(
      is_read(type),
      "{}: tensor {}: is stored as {}, which attnres does not read; it reads F32, F16, BF16, Q4_0 "
      "to Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4: take a file of one of these (Q4_K_M is the "
      "usual one), or convert this one with llama-quantize --allow-requantize FILE OUT Q8_0",
      path_, one_line(name), type_name(type));

  Entry entry;
  entry.info.type = static_cast<GgufType>(type);
  const WeightFormat format = weight_format(entry.info.type);
  const auto unit = static_cast<uint64_t>(blocks_of(format).numbers);
  require(sizes[0] % unit == 0,
          "{}: tensor {}: its rows have {} numbers, expected a multiple of {}", path_,
          one_line(name), sizes[0], unit);
  uint64_t numbers = 1;
  for (const uint64_t size : sizes) {
    require(size >= 1 && !__builtin_mul_overflow(numbers, size, &numbers) &&
                numbers <= std::numeric_limits<int64_t>::max() / sizeof(float),
            "{}: tensor {}: its sizes {} are zero, or larger than any memory", path_,
            one_line(name), fmt::join(sizes, " x "));
  }
  entry.info.shape.assign(sizes.rbegin(), sizes.rend());
  entry.bytes = numbers / unit * static_cast<uint64_t>(blocks_of(format).bytes);
  entry.begin = cursor.number<uint64_t>();
  return entry;
}

uint64_t GgufFile::alignment() const {
  const GgufValue* value = find(kAlignmentKey);
  if (value == nullptr) return kUsualAlignment;
  const auto* alignment = std::get_if<uint32_t>(value);
  require(alignment != nullptr && *alignment >= 8 && std::has_single_bit(*alignment),
          "{}: {}: expected a power of two, 8 or more, as uint32", path_, kAlignmentKey);
  return *alignment;
}

void GgufFile::place_tensors(uint64_t header_bytes) {
  if (names_.empty()) return;
  const uint64_t aligned = alignment();
  const uint64_t start = (header_bytes + aligned - 1) / aligned * aligned;
  const std::string_view whole = files_[0]->map.whole();
  const uint64_t data_bytes = start <= whole.size() ? whole.size() - start : 0;
  std::vector<std::pair<uint64_t, std::string>> by_place;
  for (const auto& [name, entry] : entries_) {
    require(entry.begin % aligned == 0,
            "{}: tensor {}: begins at byte {} of the data, expected a multiple of {}", path_,
            one_line(name), entry.begin, aligned);
    require(entry.begin <= data_bytes && entry.bytes <= data_bytes - entry.begin,
            "{}: tensor {}: its {} bytes from byte {} on lie outside the data, which has {}; the "
            "file is truncated or damaged",
            path_, one_line(name), entry.bytes, entry.begin, data_bytes);
    by_place.emplace_back(entry.begin, name);
  }
  std::sort(by_place.begin(), by_place.end());
  for (size_t i = 1; i < by_place.size(); ++i) {
    const auto& [before, before_name] = by_place[i - 1];
    const auto& [begin, name] = by_place[i];
    require(begin >= before + entries_.at(before_name).bytes, "{}: the tensors {} and {} overlap",
            path_, one_line(before_name), one_line(name));
  }
  for (auto& [name, entry] : entries_) {
    entry.begin += start;
    entry.file = files_[0];
  }
}

const GgufValue* GgufFile::find(const std::string& key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? nullptr : &metadata_[found->second].second;
}

template <class T>
T GgufFile::value_of(const std::string& key, const T& otherwise, const char* expected) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return otherwise;
  const auto* held = std::get_if<T>(value);
  require(held != nullptr, "{}: {}: expected {}, got a value of another type", path_, key,
          expected);
  return *held;
}

std::string GgufFile::text(const std::string& key, const std::string& otherwise) const {
  return value_of<std::string>(key, otherwise, "text");
}

bool GgufFile::flag(const std::string& key, bool otherwise) const {
  return value_of<bool>(key, otherwise, "true or false");
}

const GgufFile::Entry& GgufFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    fail("{}: no tensor {}; the nearest name of {} is '{}'", path_, one_line(name), names_.size(),
         one_line(nearest(name, names_)));
  }
  return found->second;
}

PackedMatrix GgufFile::stored(const std::string& name) const {
  const Entry& of = entry(name);
  const WeightFormat format = weight_format(of.info.type);
  std::vector<int64_t> shape = of.info.shape;
  const int64_t columns = shape.back();
  shape.back() = packed_row_bytes(format, columns);
  // Only read from, though libtorch has no tensors of constants.
  void* data = const_cast<char*>(of.file->map.whole().data() + of.begin);
  return {at::from_blob(
              data, shape, [file = of.file](void*) {}, at::kByte),
          format, columns};
}

at::Tensor GgufFile::numbers(const std::string& name) const {
  const PackedMatrix packed = stored(name);
  return packed.format == WeightFormat::f32 ? packed.bytes.view(at::kFloat) : unpack_weight(packed);
}

void GgufFile::require_finite(const std::string& name) const {
  require(
      has_finite_numbers(stored(name)),
      "{}: {} holds numbers that are not finite (NaN or infinity): the file is damaged, or they "
      "did not fit into the type that they are stored in",
      entry(name).file->path, one_line(name));
}

void GgufFile::release_pages() const {
  for (const MappedPtr& file : files_) file->map.release_pages();
}

}  // namespace attnres
