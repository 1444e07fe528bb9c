// Random numbers that depend on nothing but their seed: a counter-based generator (SplitMix64's
// finaliser over a Weyl sequence), so the n-th number of a stream can be asked for directly, and
// what one parameter draws does not depend on which other parameters exist.
#pragma once

#include <cstdint>
#include <string_view>

namespace attnres {

// A stream is a seed and a name; equal streams give equal numbers on every machine.
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name);

  // 64 random bits for this counter.
  uint64_t bits(uint64_t counter) const;
  // Uniform in [0, 1), 53 bits.
  double uniform(uint64_t counter) const;
  // Uniform whole number in [0, n).
  uint64_t below(uint64_t n, uint64_t counter) const;
  // Standard normal (Box-Muller over counters 2c and 2c + 1).
  double normal(uint64_t counter) const;

 private:
  uint64_t key_;
};

// 64-bit FNV-1a: names, and the identity of a corpus.
uint64_t hash_bytes(std::string_view bytes, uint64_t start = 0xcbf29ce484222325ULL);

}  // namespace attnres
