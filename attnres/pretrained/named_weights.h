// The tensors of a model directory under our names (model/parameter_names.h), however the program
// that wrote it spells, joins or stacks them.
//
// What others compute with beside the text model is left out and counted: encoders of images and
// sound with what leads from them to the text model, and layers that predict further tokens (mtp,
// and as many behind the model's own as its configuration says). A_log of Kimi's files may be
// longer than there are heads, whose numbers are the first.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "attnres/formats/architectures.h"
#include "attnres/formats/model_config_json.h"
#include "attnres/formats/tensor_files.h"
#include "attnres/parameters/packed_matrix.h"
#include "attnres/pretrained/mlx_tensors.h"

namespace attnres {

inline constexpr const char* kNestedNames = "language_model.";  // before every name in K3's files

// A name of ours as files of a layout have it.
std::string name_in_layout(FileLayout layout, std::string name);

class NamedWeights {
 public:
  // Throws Error where two tensors have one name here, or what is joined does not fit together. The
  // weights are read while this lives.
  NamedWeights(const TensorFiles& weights, const StoredConfig& stored);

  bool contains(const std::string& name) const { return entries_.contains(name); }
  const std::vector<std::string>& file_names(const std::string& name) const;
  at::Tensor read(const std::string& name) const;
  // How the file stores it, where that is a format of packed weights (packed_tensors.h); and its
  // rows.
  std::optional<WeightFormat> packed_format(const std::string& name) const;
  PackedMatrix read_packed(const std::string& name) const;
  bool has_packed() const;
  // As it is stored, where it is not packed.
  at::ScalarType dtype(const std::string& name) const { return entries_.at(name).info.dtype; }
  void read_into(const std::string& name, const at::Tensor& to) const;
  const std::string& what() const { return weights_.what(); }
  // What of the files is left out, counted, as a sentence for people; empty where it is nothing.
  std::string note() const;

  // That it is there, in a form that is read, in this shape (A_log is stored in several, of one
  // long dimension), and in a type that can be read.
  void check(const std::string& name, const std::vector<int64_t>& expected) const;
  // Throws Error when the file has a tensor that is in nobody's list.
  void check_all_known(const std::set<std::string>& known) const;

 private:
  struct Entry {
    MadeTensor made;
    TensorInfo info;
  };
  // Whether the tensor of this name, ours, is left out, which is then counted.
  bool leave_out(const std::string& name, const StoredConfig& stored);
  // A_log of a file, without what it is filled up with.
  MadeTensor made_of_heads(const std::string& name, const std::string& ours,
                           const StoredConfig& stored);
  void add(const MadeTensor& made);
  // What beside a weight says that it is quantized; empty where it is not.
  std::string quantized_as(const std::string& name) const;
  // Made of the file's tensors, which stay where they are.
  at::Tensor made_of(const MadeTensor& made) const;

  const TensorFiles& weights_;
  FileLayout layout_;
  std::map<std::string, Entry> entries_;  // by our names
  int64_t of_images_ = 0, of_further_tokens_ = 0;
  std::string longer_;  // what is longer than its heads
};

}  // namespace attnres
