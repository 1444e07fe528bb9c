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

// How numbers are stored; the values are ggml's, and what they mean is in weight_format.h. Numbers
// that are stored here are off by at most
//   f16   2^-11 of themselves, or 2^-25
//   bf16  2^-8 of themselves
//   q8_0  m / 220 (m / 254 + 2^-18 if m < 2^-7): m is the largest magnitude of the row's block of
//         32 numbers, which has a float16 scale m / 127
//   q4_0  m / 7.9, or m / 8 + 2^-21: the scale is m / 8
// A row is a whole number of its format's blocks.
enum class GgufType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_K = 10,
  q3_K = 11,
  q4_K = 12,
  q5_K = 13,
  q6_K = 14,
  iq4_nl = 20,
  iq4_xs = 23,
  bf16 = 30,
  mxfp4 = 39
};

// The same as packed weights have it, bit by bit.
struct GgufStorage {
  GgufType type;
  WeightFormat format;
};
inline constexpr std::array<GgufStorage, 16> kGgufStorages = {
    {{GgufType::f32, WeightFormat::f32},
     {GgufType::f16, WeightFormat::f16},
     {GgufType::q4_0, WeightFormat::q4_0},
     {GgufType::q4_1, WeightFormat::q4_1},
     {GgufType::q5_0, WeightFormat::q5_0},
     {GgufType::q5_1, WeightFormat::q5_1},
     {GgufType::q8_0, WeightFormat::q8_0},
     {GgufType::q2_K, WeightFormat::q2_K},
     {GgufType::q3_K, WeightFormat::q3_K},
     {GgufType::q4_K, WeightFormat::q4_K},
     {GgufType::q5_K, WeightFormat::q5_K},
     {GgufType::q6_K, WeightFormat::q6_K},
     {GgufType::iq4_nl, WeightFormat::iq4_nl},
     {GgufType::iq4_xs, WeightFormat::iq4_xs},
     {GgufType::bf16, WeightFormat::bf16},
     {GgufType::mxfp4, WeightFormat::mxfp4}}};
const GgufStorage& storage_of(GgufType type);
inline WeightFormat weight_format(GgufType type) {
  return storage_of(type).format;
}

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // slowest first, as everywhere here; one to four sizes
  GgufType type = GgufType::f32;
  // The numbers, in this shape, or the bytes [.., packed_row_bytes] that the type stores of them:
  // asked for once, when they are written.
  std::function<at::Tensor()> values;
};

// Writes aside, flushes to the disk, then renames: the file is whole or not there. One tensor's
// values are held at a time. Throws Error on a name that occurs twice or has more than 63 bytes, on
// shapes that the type or the format does not have, on numbers too large for the type, a full disk.
void write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                const std::vector<GgufTensor>& tensors);

}  // namespace attnres
