// What a GGUF file is stored as: a type for all matrices, or a mixture as llama.cpp's quantization
// makes it, which gives more bits to those that matter most.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "attnres/formats/gguf.h"

namespace attnres {

// `number` is llama.cpp's (general.file_type).
struct GgufFileType {
  const char* name;
  GgufType type;
  uint32_t number;
  bool is_mixed = false;
};
inline constexpr std::array<GgufFileType, 9> kGgufFileTypes = {
    {{"f32", GgufType::f32, 0},
     {"f16", GgufType::f16, 1},
     {"bf16", GgufType::bf16, 32},
     {"q8_0", GgufType::q8_0, 7},
     {"q4_0", GgufType::q4_0, 2},
     {"q4_k_s", GgufType::q4_K, 14, true},
     {"q4_k_m", GgufType::q4_K, 15, true},
     {"q5_k_m", GgufType::q5_K, 17, true},
     {"q6_k", GgufType::q6_K, 18, true}}};
// Throws Error on other names.
const GgufFileType& gguf_file_type(const std::string& name);

// A matrix of a model.
struct GgufMatrix {
  std::string name;      // "attn_v.weight", without "blk.N."
  int layer = 0;         // of the Transformer
  int layers = 1;        // in all
  int64_t columns = 0;   // numbers in a row
  int64_t experts = 0;   // of the model
  bool is_head = false;  // output.weight, or the embedding that is the head too
};

// The type of a matrix in such a file. Of a mixture, of whose types those with more bits are for
// the head (q6_K), for values and second maps of feed-forwards in the first and last eighth of the
// layers and in every third between (q4_k_m and q5_k_m: q6_K; q4_k_s: in the first eighth, q5_K),
// and where eight experts share attention (q8_0 and q5_K). Rows that are no multiple of 256 get
// q5_0 in the place of q4_K, q5_1 in that of q5_K and q8_0 in that of q6_K; and of 32, f16.
GgufType type_of_matrix(const GgufFileType& file, const GgufMatrix& matrix);

}  // namespace attnres
