// GGUF files, version 3: metadata and named tensors, as ggml and llama.cpp read them.
//
//   "GGUF" | uint32 3 | uint64 tensors | uint64 keys | keys | tensor infos | data
//   key:   string name | uint32 type | value;  an array is uint32 type | uint64 length | values
//   info:  string name | uint32 dimensions | uint64 sizes, fastest first | uint32 type |
//          uint64 offset in the data
//
// A string is uint64 length and bytes. The data, and each tensor in it, begins at a multiple of 32
// bytes; all is little-endian. gguf_reader.h reads them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "attnres/parameters/weight_format.h"

namespace attnres {

template <class... T>
using GgufValueOf = std::variant<T..., std::vector<T>...>;
// The types of metadata, in the order of the format's numbers for them: 0 to 8 and, after 9 for
// arrays, 10 to 12.
using GgufValue = GgufValueOf<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool,
                              std::string, uint64_t, int64_t, double>;
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

// How numbers are stored; the values are ggml's. Stored numbers are off by at most
//   f16   2^-11 of themselves, or 2^-25
//   bf16  2^-8 of themselves
//   q8_0  m / 220 (m / 254 + 2^-18 if m < 2^-7): m is the largest magnitude of the row's block of
//         32 numbers, which has a float16 scale m / 127
//   q4_0  m / 7.9, or m / 8 + 2^-21: the scale is m / 8
// A row of q8_0 or q4_0 is a whole number of blocks (kPackedBlock).
enum class GgufType : uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q8_0 = 8, bf16 = 30 };

// The same as packed weights have it, bit by bit, and llama.cpp's number of a file that is stored
// so for the most part.
struct GgufStorage {
  GgufType type;
  WeightFormat format;
  uint32_t file_type;
};
inline constexpr std::array<GgufStorage, 5> kGgufStorages = {
    {{GgufType::f32, WeightFormat::f32, 0},
     {GgufType::f16, WeightFormat::f16, 1},
     {GgufType::q4_0, WeightFormat::q4_0, 2},
     {GgufType::q8_0, WeightFormat::q8_0, 7},
     {GgufType::bf16, WeightFormat::bf16, 32}}};
const GgufStorage& storage_of(GgufType type);
inline WeightFormat weight_format(GgufType type) {
  return storage_of(type).format;
}

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // slowest first, as everywhere here; one to four sizes
  GgufType type = GgufType::f32;
  // The numbers, in this shape: asked for once, when they are written.
  std::function<at::Tensor()> values;
};

// Writes aside, flushes to the disk, then renames: the file is whole or not there. One tensor's
// values are held at a time. Throws Error on a name that occurs twice or has more than 63 bytes, on
// shapes that the type or the format does not have, on numbers too large for the type, a full disk.
void write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                const std::vector<GgufTensor>& tensors);

}  // namespace attnres
