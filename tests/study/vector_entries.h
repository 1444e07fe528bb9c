// Entries of the test vectors for tests.
#pragma once

#include <stdexcept>
#include <string>

#include "attnres/study/test_vectors.h"

namespace attnres::testing {

inline const TestVectorEntry& entry_named(const std::string& name) {
  for (const TestVectorEntry& entry : test_vector_entries()) {
    if (entry.name == name) return entry;
  }
  throw std::out_of_range("no test vectors " + name);
}

}  // namespace attnres::testing
