// Operations against their formulas in float64 or long double, on this machine: on every
// instruction set, in every storage type, for every number of threads.
#pragma once

#include <string>
#include <vector>

#include "attnres/ops/operation_problems.h"

namespace attnres {

// One direction of an operation in one storage type. Errors are the largest difference from the
// formula, relative to the largest magnitude of the same tensor, and at least to a tenth of that of
// all results, or of all gradients.
struct VerifiedOperation {
  std::string name;                 // "two-phase, backward"
  std::string storage;              // "float32"
  double bound = 0;                 // of 0: the numbers are to be the same
  std::vector<double> errors = {};  // by instruction set
  bool same_bits = true;            // for any number of threads
};

// One that this processor does not have, such as products of bfloat16 numbers.
struct SkippedOperation {
  std::string name, storage;
};

struct Verification {
  std::vector<std::string> instruction_sets;  // all that the machine has, best first
  int threads;                                // results were compared for 1 .. threads
  std::vector<VerifiedOperation> operations = {};
  std::vector<SkippedOperation> skipped = {};
};

// All of all_operation_problems() take some seconds. Bounds are multiplied by `bound_factor`.
Verification verify_operations(const std::vector<OperationProblems>& operations,
                               double bound_factor);

}  // namespace attnres
