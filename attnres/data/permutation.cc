#include "attnres/data/permutation.h"

#include <bit>

#include "attnres/support/error.h"
#include "attnres/support/random.h"

namespace attnres {

Permutation::Permutation(uint64_t n, uint64_t seed, uint64_t epoch)
    : n_(n), half_bits_((std::bit_width(n - 1) + 1) / 2) {
  require(n >= 1 && n <= uint64_t{1} << 62, "permutation: of 1 to 2^62 numbers, got {}", n);
  const RandomStream keys(RandomStream(seed, "order of an epoch").bits(epoch), "rounds");
  for (size_t round = 0; round < round_keys_.size(); ++round) round_keys_[round] = keys.bits(round);
}

uint64_t Permutation::encrypt(uint64_t x) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = x >> half_bits_, right = x & mask;
  for (const uint64_t key : round_keys_) {
    // The finaliser of MurmurHash3: every bit of the half and of the key moves every bit of it.
    uint64_t h = right ^ key;
    h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdULL;
    h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ULL;
    h ^= h >> 33;
    const uint64_t next = left ^ (h & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

uint64_t Permutation::operator()(uint64_t i) const {
  do i = encrypt(i);
  while (i >= n_);
  return i;
}

}  // namespace attnres
