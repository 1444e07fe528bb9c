// The tensors of a model directory under our names (model/parameter_names.h), however the program
// that wrote it spells, joins or stacks them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "attnres/formats/architectures.h"
#include "attnres/formats/tensor_files.h"
#include "attnres/pretrained/mlx_tensors.h"

namespace attnres {

inline constexpr const char* kNestedNames = "language_model.";  // before every name in K3's files

// A name of ours as files of a layout have it.
std::string name_in_layout(FileLayout layout, std::string name);

class NamedWeights {
 public:
  // Throws Error where two tensors have one name here, or what is joined does not fit together. The
  // weights are read while this lives.
  NamedWeights(const TensorFiles& weights, FileLayout layout);

  bool contains(const std::string& name) const { return entries_.contains(name); }
  const std::vector<std::string>& file_names(const std::string& name) const;
  at::Tensor read(const std::string& name) const;
  void read_into(const std::string& name, const at::Tensor& to) const;
  const std::string& what() const { return weights_.what(); }

  // That it is there, unquantized, in this shape (A_log is stored in several, of one long
  // dimension), and in a type that can be read.
  void check(const std::string& name, const std::vector<int64_t>& expected) const;
  // Throws Error when the file has a tensor that is in nobody's list.
  void check_all_known(const std::set<std::string>& known) const;

 private:
  struct Entry {
    MadeTensor made;
    TensorInfo info;
  };
  void add(const MadeTensor& made);
  // What beside a weight says that it is quantized; empty where it is not.
  std::string quantized_as(const std::string& name) const;
  // Made of the file's tensors, which stay where they are.
  at::Tensor made_of(const MadeTensor& made) const;

  const TensorFiles& weights_;
  std::map<std::string, Entry> entries_;  // by our names
};

}  // namespace attnres
