// The tokens of pieces that came before: most words of a text are few.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace attnres {

class PieceCache {
 public:
  static constexpr size_t kLongestPiece = 64;

  PieceCache() : slots_(kSlots) { ids_.reserve(kSlots); }

  // The tokens of a piece of at most kLongestPiece bytes, null where it is not known.
  // Valid up to the next call of add.
  struct Found {
    const int32_t* ids = nullptr;
    size_t count = 0;
  };
  Found find(std::string_view piece, uint64_t hash) const;
  void add(std::string_view piece, uint64_t hash, std::span<const int32_t> ids);

  static uint64_t hash_of(std::string_view piece);

 private:
  static constexpr size_t kSlots = size_t{1} << 16, kMostPieces = kSlots / 2;

  struct Slot {
    uint32_t hash = 0;
    uint32_t bytes_at = 0, ids_at = 0;
    uint16_t bytes = 0, ids = 0;  // no bytes: the slot is empty
  };

  std::vector<Slot> slots_;
  std::vector<char> bytes_;
  std::vector<int32_t> ids_;
  size_t pieces_ = 0;
};

}  // namespace attnres
