#include "attnres/text/hugging_face/piece_cache.h"

#include <cstring>

namespace attnres {

uint64_t PieceCache::hash_of(std::string_view piece) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  uint64_t hash = piece.size() * kOdd;
  const auto mix = [&](uint64_t word) {
    hash = (hash ^ word) * kOdd;
    hash ^= hash >> 32;
  };
  while (piece.size() >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, piece.data(), 8);
    mix(word);
    piece.remove_prefix(8);
  }
  uint64_t word = 0;
  for (const char c : piece) word = word << 8 | static_cast<uint8_t>(c);
  mix(word);
  return hash;
}

PieceCache::Found PieceCache::find(std::string_view piece, uint64_t hash) const {
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t i = hash % kSlots;; i = (i + 1) % kSlots) {
    const Slot& slot = slots_[i];
    if (slot.bytes == 0) return {};
    if (slot.hash == tag && slot.bytes == piece.size() &&
        std::memcmp(bytes_.data() + slot.bytes_at, piece.data(), piece.size()) == 0) {
      return {ids_.data() + slot.ids_at, slot.ids};
    }
  }
}

void PieceCache::add(std::string_view piece, uint64_t hash, std::span<const int32_t> ids) {
  if (pieces_ == kMostPieces) {
    slots_.assign(kSlots, Slot());
    bytes_.clear();
    ids_.clear();
    pieces_ = 0;
  }
  size_t i = hash % kSlots;
  while (slots_[i].bytes != 0) i = (i + 1) % kSlots;
  slots_[i] = {static_cast<uint32_t>(hash >> 32), static_cast<uint32_t>(bytes_.size()),
               static_cast<uint32_t>(ids_.size()), static_cast<uint16_t>(piece.size()),
               static_cast<uint16_t>(ids.size())};
  bytes_.insert(bytes_.end(), piece.begin(), piece.end());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++pieces_;
}

}  // namespace attnres
