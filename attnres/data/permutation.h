// An order of 0 .. n - 1 that is not stored: any place of it can be asked for, and takes no memory.
#pragma once

#include <array>
#include <cstdint>

namespace attnres {

// A Feistel network of six rounds over the next power of four, whose results beyond n are sent
// through it again (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002: cycle
// walking). Another seed or epoch gives another order.
class Permutation {
 public:
  // n from 1 to 2^62.
  Permutation(uint64_t n, uint64_t seed, uint64_t epoch);

  // Where i < n goes: each number below n has exactly one i.
  uint64_t operator()(uint64_t i) const;

 private:
  uint64_t encrypt(uint64_t x) const;

  uint64_t n_;
  int half_bits_;
  std::array<uint64_t, 6> round_keys_;
};

}  // namespace attnres
