// Every operation that has a kernel, and the gated delta rule by chunks, against their formulas in
// long double, on this machine.
#pragma once

#include <string>
#include <vector>

namespace attnres {

// One direction of an operation in one storage type. Errors are the largest difference from the
// formula, relative to the largest magnitude of the same tensor, and at least to a tenth of that of
// all results, or of all gradients.
struct VerifiedOperation {
  std::string name;     // "two-phase, backward"
  std::string storage;  // "float32"
  double bound;
  std::vector<double> errors;  // by instruction set
  bool same_bits = true;       // for any number of threads
};

struct Verification {
  std::vector<std::string> instruction_sets;  // all that the machine has, best first
  int threads;                                // results were compared for 1 .. threads
  std::vector<VerifiedOperation> operations;
};

// Takes some seconds. Bounds are multiplied by `bound_factor`.
Verification verify_operations(double bound_factor);

}  // namespace attnres
