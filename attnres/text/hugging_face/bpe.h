// Byte-pair encoding (Sennrich et al., arXiv 1508.07909): the pieces of a text as tokens.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attnres/text/hugging_face/piece_cache.h"

namespace attnres {

struct BpeSettings {
  bool bytes = false;          // symbols are bytes; otherwise characters of UTF-8
  bool ignore_merges = false;  // a piece that is a token is this token, whatever its merges say
  bool byte_fallback = false;  // a character without a token is the tokens <0x00> .. of its bytes
  bool fuse_unk = false;       // characters without tokens in a row are one unknown token
  bool ranks_are_ids = false;  // a merge's rank is the id of what it makes, as tiktoken has it
  std::optional<std::string> unk_token = {};  // without one such characters are left out
};

// From left to right by rank: of all neighbours that a merge joins, those of the merge that was
// learned first are joined, of these the leftmost, until there are none. O(n log n) in the length
// of a piece. Immutable: serves any number of threads.
class BpeModel {
 public:
  using Vocabulary = std::vector<std::pair<std::string, int32_t>>;
  using Merges = std::vector<std::pair<std::string, std::string>>;

  // In the order in which the merges were learned. `what` names the model in errors. Throws Error
  // on a merge whose parts, or what they make, are no tokens.
  BpeModel(const Vocabulary& vocabulary, const Merges& merges, BpeSettings settings,
           const std::string& what);
  ~BpeModel();

  struct Merge {
    uint32_t rank;
    int32_t id;  // of what the two make
  };
  // What encoding needs of one thread at a time: the tokens of pieces that came before, and
  // buffers.
  struct Memory {
    PieceCache cache = {};
    std::vector<int32_t> symbols = {};  // to merge; then what was merged
    std::vector<Merge> merges = {};     // of each symbol and the one behind it
    std::vector<int32_t> previous = {}, next = {};
  };
  // A memory that no other thread has, until it is given back.
  std::unique_ptr<Memory> take_memory() const;
  void give_back(std::unique_ptr<Memory> memory) const;

  // Adds the tokens of a piece.
  void encode(std::string_view piece, Memory& memory, std::vector<int32_t>& ids) const;

 private:
  // Merges, and which symbols may stand on both sides of a boundary that some merge crosses, by two
  // ids.
  class PairTable;

  int32_t find_token(std::string_view text) const;  // -1 without one
  // The symbol at the front of a text and its token, -1 without one.
  int32_t first_symbol(std::string_view text, size_t& bytes) const;
  void encode_cached(std::string_view piece, Memory& memory, std::vector<int32_t>& ids) const;
  void add_symbols(std::string_view piece, std::vector<int32_t>& symbols) const;
  void merge_few(Memory& memory) const;
  void merge_many(Memory& memory) const;

  BpeSettings settings_;
  std::unordered_map<std::string, int32_t> tokens_;
  size_t longest_token_ = 0;
  std::array<int32_t, 256> byte_symbols_{};          // of bytes, or of ASCII
  std::unordered_map<int32_t, int32_t> characters_;  // by code
  std::array<int32_t, 256> fallback_{};              // <0x00> ..
  int32_t unknown_ = -1;
  std::unique_ptr<PairTable> merges_, crossed_;

  mutable std::mutex memories_lock_;
  mutable std::vector<std::unique_ptr<Memory>> memories_;
};

}  // namespace attnres
