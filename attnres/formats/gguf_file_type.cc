#include "attnres/formats/gguf_file_type.h"

#include <algorithm>

#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

bool gets_more_bits(int layer, int layers) {
  const int eighth = layers / 8;
  return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

// Before it is seen whether rows fit.
GgufType wanted_type(const GgufFileType& file, const GgufMatrix& matrix) {
  const bool is_small = file.number == 14;  // q4_k_s
  const bool is_value = matrix.name == "attn_v.weight";
  if (matrix.is_head || file.type == GgufType::q6_K) return GgufType::q6_K;
  if (matrix.experts == 8) {
    if (is_value || matrix.name == "attn_k.weight") return GgufType::q8_0;
    if (matrix.name == "attn_output.weight" && file.type == GgufType::q4_K) return GgufType::q5_K;
  }
  const bool more = gets_more_bits(matrix.layer, matrix.layers);
  if (is_value) {
    if (is_small) return matrix.layer < 4 ? GgufType::q5_K : file.type;
    return more ? GgufType::q6_K : file.type;
  }
  if (matrix.name.starts_with("ffn_down")) {
    if (is_small) return matrix.layer < matrix.layers / 8 ? GgufType::q5_K : file.type;
    return more ? GgufType::q6_K : file.type;
  }
  return file.type;
}

}  // namespace

const GgufFileType& gguf_file_type(const std::string& name) {
  const auto* found = std::find_if(kGgufFileTypes.begin(), kGgufFileTypes.end(),
                                   [&](const GgufFileType& type) { return type.name == name; });
  require(found != kGgufFileTypes.end(), "GGUF: there is no type {}", one_line(name));
  return *found;
}

GgufType type_of_matrix(const GgufFileType& file, const GgufMatrix& matrix) {
  GgufType type = file.is_mixed ? wanted_type(file, matrix) : file.type;
  if (!fits(weight_format(type), matrix.columns) && file.is_mixed) {
    type = type == GgufType::q4_K   ? GgufType::q5_0
           : type == GgufType::q5_K ? GgufType::q5_1
                                    : GgufType::q8_0;
  }
  return fits(weight_format(type), matrix.columns) ? type : GgufType::f16;
}

}  // namespace attnres
