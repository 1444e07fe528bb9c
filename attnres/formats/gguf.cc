#include "attnres/formats/gguf.h"

#include <ATen/ops/isfinite.h>
#include <fmt/ranges.h>

#include <bit>
#include <set>
#include <type_traits>

#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian");

constexpr uint32_t kVersion = 3;
constexpr uint64_t kAlignment = 32;
constexpr size_t kLongestName = 63;
constexpr size_t kMostDimensions = 4;
constexpr uint32_t kArray = 9;  // the format's number of this type of metadata

uint32_t type_number(size_t place_in_variant) {
  return static_cast<uint32_t>(place_in_variant < kArray ? place_in_variant : place_in_variant + 1);
}

// The bytes before the data.
class Header {
 public:
  template <class T>
  void add(T number) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void add(const std::string& text) {
    add<uint64_t>(text.size());
    bytes_ += text;
  }
  void add_value(const GgufValue& value) {
    constexpr size_t kScalars = std::variant_size_v<GgufValue> / 2;
    const bool is_array = value.index() >= kScalars;
    if (is_array) add(kArray);
    add(type_number(value.index() % kScalars));
    std::visit([this](const auto& held) { add_held(held); }, value);
  }
  void align() { bytes_.resize((bytes_.size() + kAlignment - 1) / kAlignment * kAlignment, '\0'); }
  const std::string& bytes() const { return bytes_; }

 private:
  template <class T>
  void add_held(const T& value) {
    add(value);
  }
  template <class T>
  void add_held(const std::vector<T>& values) {
    add<uint64_t>(values.size());
    for (const T& value : values) add(value);
  }

  std::string bytes_ = "GGUF";
};

uint64_t stored_bytes(const GgufTensor& tensor) {
  int64_t bytes = packed_row_bytes(weight_format(tensor.type), tensor.shape.back());
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) bytes *= tensor.shape[i];
  return static_cast<uint64_t>(bytes);
}

uint64_t padding(uint64_t bytes) {
  return (kAlignment - bytes % kAlignment) % kAlignment;
}

at::Tensor stored_values(const GgufTensor& tensor) {
  const at::Tensor given = tensor.values();
  if (given.scalar_type() == at::kByte) {
    require(static_cast<uint64_t>(given.numel()) == stored_bytes(tensor),
            "GGUF: tensor {}: its values have {} bytes, not {}", tensor.name, given.numel(),
            stored_bytes(tensor));
    return given.contiguous();
  }
  const at::Tensor values = given.detach().to(at::kCPU, at::kFloat).contiguous();
  require(values.sizes() == tensor.shape,
          "GGUF: tensor {}: its values have the shape [{}], not [{}]", tensor.name,
          fmt::join(values.sizes(), ", "), fmt::join(tensor.shape, ", "));
  if (tensor.type == GgufType::f32) return values;
  if (tensor.type == GgufType::bf16) return values.to(at::kBFloat16);
  require(at::isfinite(values.to(at::kHalf)).all().item<bool>(),
          "GGUF: tensor {}: has numbers that are not finite, or too large for float16 (65504); "
          "store it as f32 or bf16",
          tensor.name);
  return pack_weight(values, weight_format(tensor.type)).bytes;
}

void check(const std::vector<GgufTensor>& tensors) {
  std::set<std::string_view> names;
  for (const GgufTensor& tensor : tensors) {
    require(names.insert(tensor.name).second, "GGUF: two tensors are named {}", tensor.name);
    require(!tensor.name.empty() && tensor.name.size() <= kLongestName,
            "GGUF: tensor name '{}': has {} bytes, expected 1 to {}", tensor.name,
            tensor.name.size(), kLongestName);
    require(!tensor.shape.empty() && tensor.shape.size() <= kMostDimensions,
            "GGUF: tensor {}: has {} dimensions, expected 1 to {}", tensor.name,
            tensor.shape.size(), kMostDimensions);
    for (const int64_t size : tensor.shape) {
      require(size > 0, "GGUF: tensor {}: its shape [{}] has no numbers", tensor.name,
              fmt::join(tensor.shape, ", "));
    }
    const WeightBlocks& blocks = blocks_of(weight_format(tensor.type));
    require(tensor.shape.back() % blocks.numbers == 0,
            "GGUF: tensor {}: its rows have {} numbers, and {} stores multiples of {}; store it as "
            "another type",
            tensor.name, tensor.shape.back(), blocks.name, blocks.numbers);
  }
}

}  // namespace

const GgufStorage& storage_of(GgufType type) {
  for (const GgufStorage& storage : kGgufStorages) {
    if (storage.type == type) return storage;
  }
  fail("GGUF: unknown type {}", static_cast<uint32_t>(type));
}

void write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                const std::vector<GgufTensor>& tensors) {
  check(tensors);
  Header header;
  header.add(kVersion);
  header.add<uint64_t>(tensors.size());
  header.add<uint64_t>(metadata.size());
  std::set<std::string_view> keys;
  for (const auto& [key, value] : metadata) {
    require(keys.insert(key).second, "GGUF: two keys are named {}", key);
    header.add(key);
    header.add_value(value);
  }
  uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    header.add(tensor.name);
    header.add(static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) {
      header.add(static_cast<uint64_t>(*size));
    }
    header.add(static_cast<uint32_t>(tensor.type));
    header.add(offset);
    offset += stored_bytes(tensor);
    offset += padding(offset);
  }
  header.align();

  AtomicWriter writer(path);
  writer.write(header.bytes().data(), header.bytes().size());
  for (const GgufTensor& tensor : tensors) {
    const at::Tensor data = stored_values(tensor);
    writer.write(data.const_data_ptr(), data.nbytes());
    const std::string zeros(padding(data.nbytes()), '\0');
    writer.write(zeros.data(), zeros.size());
  }
  writer.finish();
}

}  // namespace attnres
