// Tokens to train on: one stream, in memory or in files, of any length.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace attnres {

// Tokens one after another where they lie, as unsigned little-endian numbers of 2 or 4 bytes.
struct TokenPiece {
  std::shared_ptr<const void> owner;  // of the memory
  const void* tokens = nullptr;
  int64_t count = 0;
  int width = 4;                        // bytes a token
  bool marks_targets = false;           // kNoTarget may be set
  bool knows_ends = false;              // else every token that ends documents does
  std::span<const uint64_t> ends = {};  // where documents end in it, ascending
  std::string name;                     // "the text", a file: for messages
};

// In numbers of 4 bytes: the token is no target, as the words of a user in a conversation. What is
// left of the number is the token.
inline constexpr uint32_t kNoTarget = uint32_t{1} << 31;

// Copies share the tokens.
class TrainingTokens {
 public:
  TrainingTokens() = default;
  explicit TrainingTokens(std::vector<int32_t> tokens);
  explicit TrainingTokens(std::vector<TokenPiece> pieces);

  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  const std::vector<TokenPiece>& pieces() const { return pieces_; }
  bool marks_targets() const;  // whether some tokens may have kNoTarget
  TrainingTokens first(int64_t count) const;

  // `count` tokens from `first` on, with kNoTarget where they have it. Throws Error naming the file
  // and place of a token that is not below `vocab_size`.
  void read(int64_t first, int64_t count, int64_t vocab_size, uint32_t* out) const;
  std::vector<int32_t> read(int64_t first, int64_t count, int64_t vocab_size) const;
  // Whether one of these is a target.
  bool has_target(int64_t first, int64_t count) const;
  // Places in the stream after which documents end, above `first` and at most at `first + count`.
  // Throws Error naming a file whose ends are none.
  std::vector<int64_t> ends(int64_t first, int64_t count, int32_t end_of_document) const;

 private:
  std::vector<TokenPiece> pieces_;
  std::vector<int64_t> ends_;  // of the pieces, in the stream
};

}  // namespace attnres
