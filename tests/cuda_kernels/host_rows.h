// Rows for kernels that run on the host: drawn with the same bits everywhere, and compared.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attnres/ops/cuda_code.h"

namespace attnres::gpu {

inline double number(float x) {
  return x;
}
inline double number(BFloat16 x) {
  return as_float(static_cast<uint32_t>(x.bits) << 16);
}
inline void set(float& to, double x) {
  to = static_cast<float>(x);
}
inline void set(BFloat16& to, double x) {
  to.bits = static_cast<uint16_t>(rounded_pair(static_cast<float>(x), 0));
}

// About normal, of mean 0 and deviation 1: a sum of twelve numbers of a linear congruential
// generator.
class HostNumbers {
 public:
  explicit HostNumbers(uint64_t seed) : state_(seed) {}

  double next() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<double>(state_ >> 40) / (1 << 24);
    }
    return sum;
  }
  template <class Storage>
  std::vector<Storage> rows(int64_t count, double mean = 0, double deviation = 1) {
    std::vector<Storage> all(static_cast<size_t>(count));
    for (Storage& x : all) set(x, mean + deviation * next());
    return all;
  }

 private:
  uint64_t state_;
};

// max |actual - expected| / max |expected|; infinite where an actual one is no number.
template <class Storage>
double relative_error(const std::vector<Storage>& actual, const std::vector<double>& expected) {
  double error = 0, largest = 1e-3;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(number(actual[i]) - expected[i]);
    error = difference == difference ? std::max(error, difference) : INFINITY;
    largest = std::max(largest, std::abs(expected[i]));
  }
  return error / largest;
}

// FNV-1a of the bits of results, one after the other.
class BitHash {
 public:
  template <class Storage>
  void add(const std::vector<Storage>& rows) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(rows.data());
    for (size_t i = 0; i < rows.size() * sizeof(Storage); ++i) {
      hash_ = (hash_ ^ bytes[i]) * 1099511628211u;
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 14695981039346656037u;
};

}  // namespace attnres::gpu
