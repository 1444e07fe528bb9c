#include "attnres/formats/gguf.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/Half.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <type_traits>

#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian");

constexpr uint32_t kVersion = 3;
constexpr uint64_t kAlignment = 32;
constexpr size_t kLongestName = 63;
constexpr size_t kMostDimensions = 4;
constexpr int64_t kBlockBytes = 2 + kGgufBlock;  // of q8_0: a float16 scale, 32 int8 numbers

// The format's numbers of the types of metadata.
template <class T>
constexpr uint32_t type_number() {
  if constexpr (std::is_same_v<T, uint32_t>) return 4;
  if constexpr (std::is_same_v<T, int32_t>) return 5;
  if constexpr (std::is_same_v<T, float>) return 6;
  if constexpr (std::is_same_v<T, bool>) return 7;
  if constexpr (std::is_same_v<T, std::string>) return 8;
}
constexpr uint32_t kArray = 9;

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
    std::visit([this](const auto& held) { add_typed(held); }, value);
  }
  void align() { bytes_.resize((bytes_.size() + kAlignment - 1) / kAlignment * kAlignment, '\0'); }
  const std::string& bytes() const { return bytes_; }

 private:
  template <class T>
  void add_typed(const T& value) {
    add(type_number<T>());
    add(value);
  }
  template <class T>
  void add_typed(const std::vector<T>& values) {
    add(kArray);
    add(type_number<T>());
    add<uint64_t>(values.size());
    for (const T& value : values) add(value);
  }

  std::string bytes_ = "GGUF";
};

uint64_t count(const std::vector<int64_t>& shape) {
  uint64_t numbers = 1;
  for (const int64_t size : shape) numbers *= static_cast<uint64_t>(size);
  return numbers;
}

uint64_t stored_bytes(const GgufTensor& tensor) {
  switch (tensor.type) {
    case GgufType::f32:
      return count(tensor.shape) * 4;
    case GgufType::f16:
    case GgufType::bf16:
      return count(tensor.shape) * 2;
    case GgufType::q8_0:
      return count(tensor.shape) / kGgufBlock * kBlockBytes;
  }
  fail("GGUF: tensor {}: unknown type {}", tensor.name, static_cast<uint32_t>(tensor.type));
}

uint64_t padding(uint64_t bytes) {
  return (kAlignment - bytes % kAlignment) % kAlignment;
}

// Blocks of a float16 scale d = max |x| / 127 and 32 int8 numbers, x / d rounded to the nearest
// (halves away from zero), as in ggml's reference.
at::Tensor quantize_q8_0(const at::Tensor& values) {
  const int64_t blocks = values.numel() / kGgufBlock;
  at::Tensor bytes = at::empty({blocks * kBlockBytes}, at::kByte);
  const float* x = values.const_data_ptr<float>();
  uint8_t* out = bytes.mutable_data_ptr<uint8_t>();
  for (int64_t block = 0; block < blocks; ++block, x += kGgufBlock, out += kBlockBytes) {
    float largest = 0;
    for (int64_t i = 0; i < kGgufBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float scale = largest / 127;
    const float inverse = scale == 0 ? 0 : 1 / scale;
    const c10::Half stored = scale;
    std::memcpy(out, &stored, sizeof(stored));
    for (int64_t i = 0; i < kGgufBlock; ++i) {
      out[sizeof(stored) + i] =
          static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * inverse)));
    }
  }
  return bytes;
}

at::Tensor stored_values(const GgufTensor& tensor) {
  at::Tensor values = tensor.values().detach().to(at::kCPU, at::kFloat).contiguous();
  require(values.sizes() == tensor.shape,
          "GGUF: tensor {}: its values have the shape [{}], not [{}]", tensor.name,
          fmt::join(values.sizes(), ", "), fmt::join(tensor.shape, ", "));
  if (tensor.type == GgufType::f32) return values;
  if (tensor.type == GgufType::bf16) return values.to(at::kBFloat16);
  const at::Tensor half = values.to(at::kHalf);
  require(at::isfinite(half).all().item<bool>(),
          "GGUF: tensor {}: has numbers that are not finite, or too large for float16 (65504); "
          "store it as f32 or bf16",
          tensor.name);
  return tensor.type == GgufType::f16 ? half : quantize_q8_0(values);
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
    require(tensor.type != GgufType::q8_0 || tensor.shape.back() % kGgufBlock == 0,
            "GGUF: tensor {}: its rows have {} numbers, and q8_0 stores multiples of {}; store it "
            "as another type",
            tensor.name, tensor.shape.back(), kGgufBlock);
  }
}

}  // namespace

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
