#include "attnres/data/training_tokens.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "attnres/support/error.h"

namespace attnres {
namespace {

static_assert(std::endian::native == std::endian::little, "files of tokens are little-endian");

TokenPiece piece_of(std::vector<int32_t> tokens) {
  const auto owner = std::make_shared<const std::vector<int32_t>>(std::move(tokens));
  return {.owner = owner,
          .tokens = owner->data(),
          .count = std::ssize(*owner),
          .width = 4,
          .name = "the text"};
}

void find_ends(const TokenPiece& piece, int64_t from, int64_t to, int32_t end_of_document,
               int64_t begin, std::vector<int64_t>& found) {
  const auto is_end = [&](int64_t i) {
    const uint32_t token = piece.width == 2 ? static_cast<const uint16_t*>(piece.tokens)[i]
                                            : static_cast<const uint32_t*>(piece.tokens)[i];
    return (piece.marks_targets ? token & ~kNoTarget : token) ==
           static_cast<uint32_t>(end_of_document);
  };
  for (int64_t i = from; i < to; ++i) {
    if (is_end(i)) found.push_back(begin + i + 1);
  }
}

void copy_tokens(const TokenPiece& piece, int64_t first, int64_t count, uint32_t* out) {
  if (piece.width == 2) {
    std::copy_n(static_cast<const uint16_t*>(piece.tokens) + first, count, out);
  } else {
    std::copy_n(static_cast<const uint32_t*>(piece.tokens) + first, count, out);
  }
}

}  // namespace

TrainingTokens::TrainingTokens(std::vector<int32_t> tokens)
    : TrainingTokens(std::vector<TokenPiece>{piece_of(std::move(tokens))}) {}

TrainingTokens::TrainingTokens(std::vector<TokenPiece> pieces) : pieces_(std::move(pieces)) {
  int64_t end = 0;
  for (const TokenPiece& piece : pieces_) ends_.push_back(end += piece.count);
}

bool TrainingTokens::marks_targets() const {
  return std::any_of(pieces_.begin(), pieces_.end(),
                     [](const TokenPiece& piece) { return piece.marks_targets; });
}

TrainingTokens TrainingTokens::first(int64_t count) const {
  std::vector<TokenPiece> pieces;
  for (TokenPiece piece : pieces_) {
    if (count == 0) break;
    piece.count = std::min(piece.count, count);
    const auto end = std::upper_bound(piece.ends.begin(), piece.ends.end(), piece.count);
    piece.ends = {piece.ends.begin(), end};
    count -= piece.count;
    pieces.push_back(std::move(piece));
  }
  return TrainingTokens(std::move(pieces));
}

void TrainingTokens::read(int64_t first, int64_t count, int64_t vocab_size, uint32_t* out) const {
  require(first >= 0 && count >= 0 && first + count <= size(), "tokens {} to {} of a stream of {}",
          first, first + count, size());
  auto piece = std::upper_bound(ends_.begin(), ends_.end(), first) - ends_.begin();
  while (count > 0) {
    const TokenPiece& from = pieces_[piece];
    const int64_t begin = first - (ends_[piece] - from.count);
    const int64_t here = std::min(count, from.count - begin);
    copy_tokens(from, begin, here, out);
    for (int64_t i = 0; i < here; ++i) {
      const uint32_t token = from.marks_targets ? out[i] & ~kNoTarget : out[i];
      require(token < vocab_size,
              "{}: token {} is {}, but the tokenizer has {} tokens; the tokens are of another "
              "tokenizer, or damaged",
              from.name, begin + i, token, vocab_size);
    }
    first += here;
    out += here;
    count -= here;
    ++piece;
  }
}

bool TrainingTokens::has_target(int64_t first, int64_t count) const {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const TokenPiece& piece = pieces_[i];
    const int64_t begin = ends_[i] - piece.count;
    const int64_t from = std::max<int64_t>(first - begin, 0);
    const int64_t to = std::min(first + count - begin, piece.count);
    if (from >= to) continue;
    if (!piece.marks_targets) return true;
    const auto* tokens = static_cast<const uint32_t*>(piece.tokens);
    if (std::any_of(tokens + from, tokens + to,
                    [](uint32_t token) { return (token & kNoTarget) == 0; })) {
      return true;
    }
  }
  return false;
}

std::vector<int64_t> TrainingTokens::ends(int64_t first, int64_t count,
                                          int32_t end_of_document) const {
  std::vector<int64_t> found;
  const int64_t last = first + count;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const TokenPiece& piece = pieces_[i];
    const int64_t begin = ends_[i] - piece.count;
    // Places within the piece.
    const int64_t from = std::max<int64_t>(first - begin, 0);
    const int64_t to = std::min(last - begin, piece.count);
    if (from >= to) continue;
    if (!piece.knows_ends) {
      find_ends(piece, from, to, end_of_document, begin, found);
      continue;
    }
    auto end = std::upper_bound(piece.ends.begin(), piece.ends.end(), static_cast<uint64_t>(from));
    for (; end != piece.ends.end() && *end <= static_cast<uint64_t>(to); ++end) {
      const int64_t place = begin + static_cast<int64_t>(*end);
      require(place > first && (found.empty() || place > found.back()),
              "{}: its documents' ends are damaged; tokenize the text again", piece.name);
      found.push_back(place);
    }
  }
  return found;
}

std::vector<int32_t> TrainingTokens::read(int64_t first, int64_t count, int64_t vocab_size) const {
  std::vector<uint32_t> raw(count);
  read(first, count, vocab_size, raw.data());
  std::vector<int32_t> tokens(count);
  std::transform(raw.begin(), raw.end(), tokens.begin(),
                 [](uint32_t token) { return static_cast<int32_t>(token & ~kNoTarget); });
  return tokens;
}

}  // namespace attnres
