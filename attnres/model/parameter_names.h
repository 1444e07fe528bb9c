// The public names of parameters: Llama's in Hugging Face files, Kimi Linear's and Kimi K3's for
// what only they have.
#pragma once

#include <string>
#include <vector>

#include "attnres/parameters/parameters.h"

namespace attnres {

// For example (site 3, "pseudo_query") of an 8-sublayer model:
// "model.layers.1.mlp_res_proj.weight". Of stacked experts, the name of one of them.
std::string hugging_face_name(const Parameter& parameter, int sublayers, int64_t expert = 0);

// The role of the map that a parameter of low rank lies beside.
std::string map_of_low_rank(const std::string& role);

// That of the module whose weight a map is: "model.layers.1.mlp.up_proj".
std::string module_name(int site, const std::string& role, int sublayers);

// A parameter as a file holds it.
struct StoredTensor {
  std::string name;
  std::vector<int64_t> shape;
  int64_t expert = -1;  // the part of a stack that it is; -1: the whole parameter

  // The parameter, or its part, in the file's shape; shares its memory.
  at::Tensor view(const at::Tensor& parameter) const;
};

// One, or of stacked experts one an expert.
std::vector<StoredTensor> stored_tensors(const Parameter& parameter, int sublayers);

}  // namespace attnres
