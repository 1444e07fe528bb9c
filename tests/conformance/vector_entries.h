// Entries of the test vectors, and results to diagnose, for tests.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "attnres/conformance/diagnosis.h"
#include "attnres/conformance/test_vectors.h"
#include "attnres/formats/safetensors.h"
#include "tests/text/test_files.h"

namespace attnres::testing {

inline const TestVectorEntry& entry_named(const std::string& name) {
  for (const TestVectorEntry& entry : test_vector_entries()) {
    if (entry.name == name) return entry;
  }
  throw std::out_of_range("no test vectors " + name);
}

inline bool is_forward(const std::string& name) {
  return !name.starts_with("gradient.");
}

// What an implementation elsewhere would store.
inline NamedTensors results_of(const TestVectorEntry& entry, const TestVectors& vectors,
                               const std::function<bool(const std::string&)>& wanted = {}) {
  NamedTensors results;
  for (const auto& [name, tensor] : vectors.results) {
    if (!wanted || wanted(name)) results.emplace_back(entry.name + "/" + name, tensor.detach());
  }
  return results;
}

inline std::vector<Diagnosis> diagnose_results(const NamedTensors& results) {
  const auto path = fresh_folder("results") / "results.safetensors";
  write_safetensors(path, results);
  return diagnose(path);
}

}  // namespace attnres::testing
