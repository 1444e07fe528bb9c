#include "attnres/support/random.h"

#include <cmath>
#include <numbers>

namespace attnres {
namespace {

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t hash_bytes(std::string_view bytes, uint64_t start) {
  uint64_t hash = start;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

RandomStream::RandomStream(uint64_t seed, std::string_view name)
    : key_(mix(mix(seed + 0x9e3779b97f4a7c15ULL) ^ hash_bytes(name))) {}

uint64_t RandomStream::bits(uint64_t counter) const {
  return mix(key_ + (counter + 1) * 0x9e3779b97f4a7c15ULL);
}

double RandomStream::uniform(uint64_t counter) const {
  return static_cast<double>(bits(counter) >> 11) * 0x1.0p-53;
}

uint64_t RandomStream::below(uint64_t n, uint64_t counter) const {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits(counter)) * n) >> 64);
}

double RandomStream::normal(uint64_t counter) const {
  const double radius = std::sqrt(-2.0 * std::log1p(-uniform(2 * counter)));
  return radius * std::cos(2.0 * std::numbers::pi * uniform(2 * counter + 1));
}

}  // namespace attnres
