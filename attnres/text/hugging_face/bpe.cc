#include "attnres/text/hugging_face/bpe.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <queue>

#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/text/hugging_face/unicode.h"

namespace attnres {
namespace {

constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
// Up to so many symbols, looking through all is faster than a heap.
constexpr size_t kFewSymbols = 24;

}  // namespace

class BpeModel::PairTable {
 public:
  explicit PairTable(size_t pairs) {
    size_t slots = 16;
    while (slots < 2 * pairs) slots *= 2;
    slots_.resize(slots);
  }

  const Merge* find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t i = slot_of(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return &slots_[i].merge;
      if (slots_[i].key == kEmpty) return nullptr;
    }
  }

  // Where a pair is there already, the last value counts.
  void set(int32_t left, int32_t right, Merge merge) {
    const uint64_t key = key_of(left, right);
    size_t i = slot_of(key);
    while (slots_[i].key != kEmpty && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = {key, merge};
  }

 private:
  static constexpr uint64_t kEmpty = std::numeric_limits<uint64_t>::max();
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge{};
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const {
    const uint64_t mixed = key * 0x9e3779b97f4a7c15;
    return (mixed ^ mixed >> 32) & (slots_.size() - 1);
  }
  std::vector<Slot> slots_;
};

BpeModel::BpeModel(const Vocabulary& vocabulary, const Merges& merges, BpeSettings settings,
                   const std::string& what)
    : settings_(std::move(settings)) {
  tokens_.reserve(vocabulary.size());
  for (const auto& [text, id] : vocabulary) {
    tokens_[text] = id;
    longest_token_ = std::max(longest_token_, text.size());
    if (text.empty()) continue;
    if (!settings_.bytes && first_character(text).bytes == text.size()) {
      characters_[first_character(text).code] = id;
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    byte_symbols_[byte] = find_token(std::string(1, static_cast<char>(byte)));
    fallback_[byte] = find_token(fmt::format("<0x{:02X}>", byte));
    require(!settings_.bytes || !settings_.byte_fallback || byte_symbols_[byte] >= 0,
            "{}: byte_fallback with tokens of bytes, of which byte {} has none", what, byte);
  }
  if (settings_.unk_token) {
    unknown_ = find_token(*settings_.unk_token);
    require(unknown_ >= 0, "{}: the unk_token {} is not in the vocabulary", what,
            one_line(*settings_.unk_token));
  }

  merges_ = std::make_unique<PairTable>(merges.size());
  crossed_ = std::make_unique<PairTable>(merges.size());
  const auto symbol = [&](std::string_view text) {
    size_t bytes = 0;
    return first_symbol(text, bytes);
  };
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const int32_t left_id = find_token(left), right_id = find_token(right);
    const int32_t id = find_token(left + right);
    if (left_id < 0 || right_id < 0 || id < 0 || left.empty() || right.empty()) {
      fail("{}: merge {} joins '{}' and '{}', and not all of these and '{}' are in the vocabulary",
           what, rank, one_line(left), one_line(right), one_line(left + right));
    }
    merges_->set(left_id, right_id,
                 {static_cast<uint32_t>(settings_.ranks_are_ids ? id : rank), id});
    const size_t last = settings_.bytes ? 1 : last_character(left).bytes;
    crossed_->set(symbol(std::string_view(left).substr(left.size() - last)), symbol(right), {});
  }
}

BpeModel::~BpeModel() = default;

std::unique_ptr<BpeModel::Memory> BpeModel::take_memory() const {
  {
    const std::lock_guard lock(memories_lock_);
    if (!memories_.empty()) {
      auto memory = std::move(memories_.back());
      memories_.pop_back();
      return memory;
    }
  }
  return std::make_unique<Memory>();
}

void BpeModel::give_back(std::unique_ptr<Memory> memory) const {
  const std::lock_guard lock(memories_lock_);
  memories_.push_back(std::move(memory));
}

int32_t BpeModel::find_token(std::string_view text) const {
  const auto found = tokens_.find(std::string(text));
  return found == tokens_.end() ? -1 : found->second;
}

int32_t BpeModel::first_symbol(std::string_view text, size_t& bytes) const {
  const auto byte = static_cast<uint8_t>(text[0]);
  if (settings_.bytes || byte < 0x80) {
    bytes = 1;
    return byte_symbols_[byte];
  }
  const Character character = first_character(text);
  bytes = character.bytes;
  const auto found = characters_.find(character.code);
  return found == characters_.end() ? -1 : found->second;
}

void BpeModel::encode(std::string_view piece, Memory& memory, std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  if (piece.size() <= PieceCache::kLongestPiece) return encode_cached(piece, memory, ids);
  // A part of a piece that is a token is not this token for that alone.
  if (settings_.ignore_merges) return encode_cached(piece, memory, ids);
  // Cut where no merge ever crosses, into parts that may have come before.
  size_t begin = 0, at = 0;
  int32_t previous = -1;
  while (at < piece.size()) {
    size_t bytes = 0;
    const int32_t symbol = first_symbol(piece.substr(at), bytes);
    if (previous >= 0 && symbol >= 0 && crossed_->find(previous, symbol) == nullptr) {
      encode_cached(piece.substr(begin, at - begin), memory, ids);
      begin = at;
    }
    previous = symbol;
    at += bytes;
  }
  encode_cached(piece.substr(begin), memory, ids);
}

void BpeModel::encode_cached(std::string_view piece, Memory& memory,
                             std::vector<int32_t>& ids) const {
  const bool is_short = piece.size() <= PieceCache::kLongestPiece;
  uint64_t hash = 0;
  if (is_short) {
    hash = PieceCache::hash_of(piece);
    const PieceCache::Found found = memory.cache.find(piece, hash);
    if (found.ids != nullptr) {
      ids.insert(ids.end(), found.ids, found.ids + found.count);
      return;
    }
  }
  memory.symbols.clear();
  const int32_t whole =
      settings_.ignore_merges && piece.size() <= longest_token_ ? find_token(piece) : -1;
  if (whole >= 0) {
    memory.symbols.push_back(whole);
  } else {
    add_symbols(piece, memory.symbols);
    if (memory.symbols.size() <= kFewSymbols) {
      merge_few(memory);
    } else {
      merge_many(memory);
    }
  }
  ids.insert(ids.end(), memory.symbols.begin(), memory.symbols.end());
  if (is_short) memory.cache.add(piece, hash, memory.symbols);
}

void BpeModel::add_symbols(std::string_view piece, std::vector<int32_t>& symbols) const {
  bool unknown = false;  // one that is not added yet
  const auto end_unknown = [&] {
    if (unknown) symbols.push_back(unknown_);
    unknown = false;
  };
  while (!piece.empty()) {
    size_t bytes = 0;
    const int32_t symbol = first_symbol(piece, bytes);
    const std::string_view character = piece.substr(0, bytes);
    piece.remove_prefix(bytes);
    const auto has_fallback = [&](char byte) { return fallback_[static_cast<uint8_t>(byte)] >= 0; };
    if (symbol >= 0) {
      end_unknown();
      symbols.push_back(symbol);
    } else if (settings_.byte_fallback &&
               std::all_of(character.begin(), character.end(), has_fallback)) {
      // As in Hugging Face's, an unknown token before goes behind.
      for (const char byte : character) symbols.push_back(fallback_[static_cast<uint8_t>(byte)]);
    } else if (unknown_ >= 0) {
      if (!settings_.fuse_unk) end_unknown();
      unknown = true;
    }
  }
  end_unknown();
}

// Looks for the best pair among all, again and again.
void BpeModel::merge_few(Memory& memory) const {
  std::vector<int32_t>& symbols = memory.symbols;
  std::array<Merge, kFewSymbols> merges;
  size_t count = symbols.size();
  const auto look_up = [&](size_t i) {
    const Merge* merge = merges_->find(symbols[i], symbols[i + 1]);
    merges[i] = merge == nullptr ? Merge{kNoRank, -1} : *merge;
  };
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNoRank) break;
    symbols[best] = merges[best].id;
    std::copy(symbols.begin() + best + 2, symbols.begin() + count, symbols.begin() + best + 1);
    if (best + 2 < count) {
      std::copy(merges.begin() + best + 2, merges.begin() + count - 1, merges.begin() + best + 1);
    }
    --count;
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  symbols.resize(count);
}

// A heap of pairs over a linked list of symbols.
void BpeModel::merge_many(Memory& memory) const {
  std::vector<int32_t>& symbols = memory.symbols;
  std::vector<Merge>& merges = memory.merges;
  std::vector<int32_t>&previous = memory.previous, &next = memory.next;
  const auto count = static_cast<int32_t>(symbols.size());
  merges.resize(count);
  previous.resize(count);
  next.resize(count);
  std::vector<uint64_t> found;
  // The lowest rank first, of equal ones the leftmost.
  const auto entry_of = [&](int32_t i) { return static_cast<uint64_t>(merges[i].rank) << 32 | i; };
  const auto look_up = [&](int32_t i) {
    const Merge* merge = next[i] < count ? merges_->find(symbols[i], symbols[next[i]]) : nullptr;
    merges[i] = merge == nullptr ? Merge{kNoRank, -1} : *merge;
    return merge != nullptr;
  };
  for (int32_t i = 0; i < count; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
    if (look_up(i)) found.push_back(entry_of(i));
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap(std::greater<>(),
                                                                            std::move(found));
  while (!heap.empty()) {
    const uint64_t entry = heap.top();
    heap.pop();
    const auto i = static_cast<int32_t>(entry & 0xffffffff);
    if (merges[i].rank != entry >> 32) continue;  // another pair stands there since
    const int32_t right = next[i];
    symbols[i] = merges[i].id;
    next[i] = next[right];
    symbols[right] = -1;
    merges[right].rank = kNoRank;
    if (next[i] < count) previous[next[i]] = i;
    if (look_up(i)) heap.push(entry_of(i));
    if (previous[i] >= 0 && look_up(previous[i])) heap.push(entry_of(previous[i]));
  }
  std::erase(symbols, -1);
}

}  // namespace attnres
