// What is wrong with an implementation elsewhere, found from its numbers: they are compared with
// the test vectors, and with what the known mistakes give.
#pragma once

#include <ATen/core/ScalarType.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "attnres/conformance/known_mistakes.h"

namespace attnres {

// How far a result may be off, relative to the largest magnitude of the tensor that it should be;
// of a single number, of its role at all sites, as a sum that nearly cancels has no scale of its
// own. Our own kernels stay below three quarters of it in every entry, in bfloat16 with everything
// given rounded too. Throws Error on any dtype but float64, float32 and bfloat16.
//
//              float64  float32  bfloat16
//   gradients    1e-9     1e-4      0.4
//   others       1e-10    1e-5      0.06
double vector_tolerance(at::ScalarType dtype, bool is_gradient);

// One result beside what it should be.
struct VectorError {
  std::string name;  // without the entry's
  at::ScalarType dtype = at::kDouble;
  double error =
      0;  // the largest, relative to the largest magnitude; infinite if not all is finite
  double tolerance = 0;

  double part() const { return error / tolerance; }
};

struct Diagnosis {
  struct Match {
    KnownMistake mistake;
    VectorError worst;                     // beside the mistake's numbers
    std::optional<VectorError> departure;  // from them
    double distance = 0;                   // the mean part of the tolerance, over the results
  };

  std::string entry;
  size_t found = 0, results = 0;         // results in the file, and of the entry in all
  bool has_gradients = false;            // without any, a mistake in the backward cannot show
  VectorError worst;                     // the largest part of its tolerance
  std::optional<VectorError> departure;  // the first over its tolerance
  std::vector<Match> mistakes;           // whose numbers these are, the nearest first
  // Where there is none: the mistake that explains the most results from the first departure on,
  // up to a departure of its own, as when there are two mistakes.
  std::optional<Match> partly;

  bool matches() const { return !departure.has_value(); }
};

// Diagnoses every entry in a safetensors file of results "ENTRY/NAME" (test_vectors.h); any subset
// will do. Given tensors may stand among them and must be as given. Throws Error on files that
// cannot be read, that hold no result, and on names, shapes and dtypes that do not belong there.
std::vector<Diagnosis> diagnose(const std::filesystem::path& path);

}  // namespace attnres
