#include "attnres/ops/packed_weight/pack_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace attnres::kernel {
namespace {

// To the nearest, ties to even, the same on every processor.
uint16_t half_of(float number) {
  const auto bits = std::bit_cast<uint32_t>(number);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  constexpr uint32_t kInfinity = 0x7f800000, kLeastNormal = 0x38800000;  // 2^-14
  constexpr uint32_t kBias = (127 - 15) << 23;
  if (magnitude > kInfinity) return sign | 0x7e00;
  if (magnitude < kLeastNormal) {
    return sign | static_cast<uint16_t>(std::nearbyint(std::fabs(number) * 0x1p24F));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | static_cast<uint16_t>(std::min<uint32_t>((rounded - kBias) >> 13, 0x7c00));
}

void store_half(float number, uint8_t* to) {
  const uint16_t half = half_of(number);
  std::memcpy(to, &half, sizeof(half));
}

float read_half(const uint8_t* from) {
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(fraction), -24)
                              : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

// Numbers one by one.
void pack_plain(const float* from, int64_t count, WeightFormat format, uint8_t* to) {
  if (format == WeightFormat::f32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (format == WeightFormat::f16) {
      store_half(from[i], to + 2 * i);
    } else {
      const auto bits = std::bit_cast<uint32_t>(from[i]);
      const auto upper = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
      std::memcpy(to + 2 * i, &upper, sizeof(upper));
    }
  }
}

float inverse_of(float number) {
  return number == 0 ? 0 : 1 / number;
}

// Of largest magnitude, with its sign.
float extreme_of(const float* x, int count) {
  return *std::max_element(x, x + count,
                           [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

int to_nearest(float number, int least, int most) {
  return std::clamp(static_cast<int>(std::lrint(number)), least, most);
}

void pack_q8_0(const float* x, uint8_t* to) {
  const float scale = std::fabs(extreme_of(x, 32)) / 127, inverse = inverse_of(scale);
  store_half(scale, to);
  for (int i = 0; i < 32; ++i) {
    to[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * inverse)));
  }
}

// The lower four bits of 32 numbers.
void store_nibbles(const uint8_t* numbers, uint8_t* to) {
  for (int i = 0; i < 16; ++i) {
    to[i] = static_cast<uint8_t>((numbers[i] & 15) | (numbers[i + 16] & 15) << 4);
  }
}

// Numbers of kBits of which the fifth bits come before the others.
template <int kBits>
void store_bits(const uint8_t* numbers, uint8_t* to) {
  uint32_t fifth = 0;
  for (int i = 0; i < 32; ++i) fifth |= uint32_t{numbers[i]} >> 4 << i;
  if (kBits == 5) std::memcpy(to, &fifth, sizeof(fifth));
  store_nibbles(numbers, to + (kBits == 5 ? 4 : 0));
}

// q4_1 and q5_1: whole numbers of kBits.
template <int kBits>
void pack_from_least(const float* x, uint8_t* to) {
  constexpr int kMost = (1 << kBits) - 1;
  const auto [least, largest] = std::minmax_element(x, x + 32);
  const float scale = (*largest - *least) / kMost, inverse = inverse_of(scale);
  store_half(scale, to);
  store_half(*least, to + 2);
  uint8_t numbers[32];
  for (int i = 0; i < 32; ++i) {
    const int number = static_cast<int>(std::floor((x[i] - *least) * inverse + 0.5F));
    numbers[i] = static_cast<uint8_t>(std::min(kMost, number));
  }
  store_bits<kBits>(numbers, to + 4);
}

// q4_0 and q5_0: whole numbers of kBits.
template <int kBits>
void pack_without_offset(const float* x, uint8_t* to) {
  constexpr int kExcess = 1 << (kBits - 1), kMost = 2 * kExcess - 1;
  const float scale = extreme_of(x, 32) / -kExcess, inverse = inverse_of(scale);
  store_half(scale, to);
  uint8_t numbers[32];
  for (int i = 0; i < 32; ++i) {
    const int number =
        static_cast<int>(std::floor(x[i] * inverse + static_cast<float>(kExcess) + 0.5F));
    numbers[i] = static_cast<uint8_t>(std::min(kMost, number));
  }
  store_bits<kBits>(numbers, to + 2);
}

// x ~ scale q + offset.
struct Line {
  float scale = 0, offset = 0;
};

// Sums over numbers, each as often as its weight says.
struct WeightedSums {
  double w = 0, q = 0, qq = 0, x = 0, qx = 0, xx = 0;

  void add(double weight, double whole, double number) {
    w += weight;
    q += weight * whole;
    qq += weight * whole * whole;
    x += weight * number;
    qx += weight * whole * number;
    xx += weight * number * number;
  }
  double squared_error(const Line& of) const {
    const double s = of.scale, m = of.offset;
    return xx - 2 * s * qx - 2 * m * x + s * s * qq + 2 * s * m * q + m * m * w;
  }
  // With an offset of zero at most.
  Line best_line() const {
    const double determinant = w * qq - q * q;
    if (determinant > 0) {
      const double offset = (qq * x - q * qx) / determinant;
      if (offset <= 0) {
        return {static_cast<float>((w * qx - q * x) / determinant), static_cast<float>(offset)};
      }
    }
    return {qq > 0 ? static_cast<float>(qx / qq) : 0.0F, 0};
  }
};

// Of 32 numbers, for q of 0 to kMost.
template <int kMost>
Line line_through(const float* x) {
  constexpr int kCount = 32, kSteps = 20;
  const auto [smallest, largest] = std::minmax_element(x, x + kCount);
  const float least = std::min(0.0F, *smallest), width = *largest - least;
  if (!(width > 0)) return {0, least};
  double squares = 0;
  for (int i = 0; i < kCount; ++i) squares += static_cast<double>(x[i]) * x[i];
  const double rms = std::sqrt(squares / kCount);
  Line best;
  double least_error = INFINITY;
  for (int step = 0; step <= kSteps; ++step) {
    const float inverse = (static_cast<float>(kMost - 1) + 0.1F * static_cast<float>(step)) / width;
    WeightedSums sums;
    for (int i = 0; i < kCount; ++i) {
      sums.add(rms + std::fabs(x[i]), to_nearest(inverse * (x[i] - least), 0, kMost), x[i]);
    }
    const Line line = sums.best_line();
    const double error = sums.squared_error(line);
    if (error < least_error) {
      best = line;
      least_error = error;
    }
  }
  return best;
}

// The j-th of eight scales and offsets of six bits, which are zero before (reference.h).
void store_six_bits(int scale, int offset, int j, uint8_t* to) {
  if (j < 4) {
    to[j] |= static_cast<uint8_t>(scale);
    to[j + 4] |= static_cast<uint8_t>(offset);
  } else {
    to[j + 4] = static_cast<uint8_t>((scale & 15) | (offset & 15) << 4);
    to[j - 4] |= static_cast<uint8_t>(scale >> 4 << 6);
    to[j] |= static_cast<uint8_t>(offset >> 4 << 6);
  }
}

// q4_K and q5_K: whole numbers of kBits.
template <int kBits>
void pack_with_offsets(const float* x, uint8_t* to) {
  constexpr int kGroups = 8, kMostSmall = 63, kMost = (1 << kBits) - 1;
  Line lines[kGroups];
  float largest = 0, lowest = 0;
  for (int j = 0; j < kGroups; ++j) {
    lines[j] = line_through<kMost>(x + 32 * j);
    largest = std::max(largest, lines[j].scale);
    lowest = std::min(lowest, lines[j].offset);
  }
  std::memset(to, 0, 16);
  store_half(largest / kMostSmall, to);
  store_half(-lowest / kMostSmall, to + 2);
  const float of_scales = read_half(to), of_offsets = read_half(to + 2);
  uint8_t numbers[256];
  for (int j = 0; j < kGroups; ++j) {
    const int scale = to_nearest(lines[j].scale * inverse_of(of_scales), 0, kMostSmall);
    const int offset = to_nearest(-lines[j].offset * inverse_of(of_offsets), 0, kMostSmall);
    store_six_bits(scale, offset, j, to + 4);
    const float s = of_scales * static_cast<float>(scale), inverse = inverse_of(s);
    const float m = of_offsets * static_cast<float>(offset);
    for (int i = 32 * j; i < 32 * (j + 1); ++i) {
      numbers[i] = static_cast<uint8_t>(to_nearest((x[i] + m) * inverse, 0, kMost));
    }
  }
  uint8_t* nibbles = to + 16;
  if (kBits == 5) {
    std::memset(nibbles, 0, 32);
    for (int i = 0; i < 256; ++i)
      nibbles[i % 32] |= static_cast<uint8_t>(numbers[i] >> 4 << i / 32);
    nibbles += 32;
  }
  for (int i = 0; i < 128; ++i) {
    const uint8_t* pair = numbers + 64 * (i / 32) + i % 32;
    nibbles[i] = static_cast<uint8_t>((pair[0] & 15) | (pair[32] & 15) << 4);
  }
}

// For q of -32 to 31 of 16 numbers, x ~ scale q.
float scale_for(const float* x) {
  constexpr int kCount = 16;
  const float extreme = extreme_of(x, kCount);
  if (extreme == 0) return 0;
  float best = 0;
  double most = -1;  // of what the squared error falls short of that of zeros
  for (int step = -9; step <= 9; ++step) {
    const float inverse = -(32 + 0.1F * static_cast<float>(step)) / extreme;
    WeightedSums sums;
    for (int i = 0; i < kCount; ++i) {
      sums.add(static_cast<double>(x[i]) * x[i], to_nearest(inverse * x[i], -32, 31), x[i]);
    }
    if (sums.qq > 0 && sums.qx * sums.qx / sums.qq > most) {
      most = sums.qx * sums.qx / sums.qq;
      best = static_cast<float>(sums.qx / sums.qq);
    }
  }
  return best;
}

void pack_q6_k(const float* x, uint8_t* to) {
  constexpr int kGroups = 16;
  float scales[kGroups];
  for (int j = 0; j < kGroups; ++j) scales[j] = scale_for(x + 16 * j);
  store_half(extreme_of(scales, kGroups) / -128, to + 208);
  const float d = read_half(to + 208);
  uint8_t numbers[256];
  for (int j = 0; j < kGroups; ++j) {
    const int scale = to_nearest(scales[j] * inverse_of(d), -128, 127);
    to[192 + j] = static_cast<uint8_t>(static_cast<int8_t>(scale));
    const float inverse = inverse_of(d * static_cast<float>(scale));
    for (int i = 16 * j; i < 16 * (j + 1); ++i) {
      numbers[i] = static_cast<uint8_t>(to_nearest(x[i] * inverse, -32, 31) + 32);
    }
  }
  for (int i = 0; i < 128; ++i) {
    const uint8_t* pair = numbers + 128 * (i / 64) + i % 64;
    to[i] = static_cast<uint8_t>((pair[0] & 15) | (pair[64] & 15) << 4);
  }
  for (int i = 0; i < 64; ++i) {
    const uint8_t* four = numbers + 128 * (i / 32) + i % 32;
    to[128 + i] = static_cast<uint8_t>(four[0] >> 4 | four[32] >> 4 << 2 | four[64] >> 4 << 4 |
                                       four[96] >> 4 << 6);
  }
}

}  // namespace

void pack_rows(const float* from, int64_t rows, int64_t columns, WeightFormat format, uint8_t* to) {
  const int64_t count = rows * columns;
  const WeightBlocks& blocks = blocks_of(format);
  if (!has_blocks(format)) return pack_plain(from, count, format, to);
  const auto pack = format == WeightFormat::q8_0   ? pack_q8_0
                    : format == WeightFormat::q4_0 ? pack_without_offset<4>
                    : format == WeightFormat::q4_1 ? pack_from_least<4>
                    : format == WeightFormat::q5_0 ? pack_without_offset<5>
                    : format == WeightFormat::q5_1 ? pack_from_least<5>
                    : format == WeightFormat::q4_K ? pack_with_offsets<4>
                    : format == WeightFormat::q5_K ? pack_with_offsets<5>
                                                   : pack_q6_k;
  for (int64_t i = 0; i < count; i += blocks.numbers, to += blocks.bytes) pack(from + i, to);
}

}  // namespace attnres::kernel
