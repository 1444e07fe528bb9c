// The learned tensors of a model: what each is, where it sits, and how it starts. The kind decides
// weight decay and which optimizer serves it; the starting value depends only on the seed, the site
// and the role, so that models which differ in one part start equal in all others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace attnres {

enum class ParameterKind {
  matrix,        // a linear map of a hidden layer
  embedding,     // token embedding
  head,          // output projection
  norm_gain,     // gain of a norm
  pseudo_query,  // query over depth
};

// Weight decay applies to linear maps only: not to norms, embeddings or pseudo-queries.
bool has_weight_decay(ParameterKind kind);

struct Init {
  enum class Kind { constant, normal };
  Kind kind = Kind::constant;
  double value = 0;  // the constant, or the standard deviation

  static Init zeros() { return {Kind::constant, 0}; }
  static Init ones() { return {Kind::constant, 1}; }
  static Init normal(double standard_deviation) { return {Kind::normal, standard_deviation}; }
};

// Sublayers are sites 0 .. L-1, the output is site L; the token embedding comes before them all.
inline constexpr int kEmbeddingSite = -1;

struct Parameter {
  int site = kEmbeddingSite;
  std::string role;  // "q_proj", "input_norm", "pseudo_query", ...
  ParameterKind kind = ParameterKind::matrix;
  at::Tensor tensor;  // a leaf that requires a gradient
};

class ParameterRegistry {
 public:
  ParameterRegistry(at::ScalarType dtype, uint64_t seed) : dtype_(dtype), seed_(seed) {}

  // Makes, initialises and keeps a parameter. Throws Error if (site, role) is taken.
  at::Tensor add(int site, const std::string& role, ParameterKind kind, at::IntArrayRef shape,
                 Init init);

  const std::deque<Parameter>& all() const { return parameters_; }
  // The parameter at a site with a role, or nullptr.
  const Parameter* find(int site, const std::string& role) const;
  int64_t count() const;  // numbers in all tensors
  at::ScalarType dtype() const { return dtype_; }

 private:
  at::ScalarType dtype_;
  uint64_t seed_;
  std::deque<Parameter> parameters_;
};

}  // namespace attnres
