#include "attnres/data/verify_tokens.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <memory>
#include <optional>

#include "attnres/data/token_folder.h"
#include "attnres/support/error.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

uint32_t token_at(const TokenPiece& piece, int64_t i) {
  if (piece.width == 2) return static_cast<const uint16_t*>(piece.tokens)[i];
  const uint32_t token = static_cast<const uint32_t*>(piece.tokens)[i];
  return piece.marks_targets ? token & ~kNoTarget : token;
}

std::optional<std::string> wrong_token(const TokenPiece& piece, int64_t vocab_size) {
  for (int64_t i = 0; i < piece.count; ++i) {
    if (token_at(piece, i) >= vocab_size) {
      return fmt::format("token {} is {}, but the vocabulary has {}", i, token_at(piece, i),
                         vocab_size);
    }
  }
  return std::nullopt;
}

std::optional<std::string> wrong_end(const TokenPiece& piece, int32_t end_of_document) {
  uint64_t before = 0;
  for (const uint64_t end : piece.ends) {
    const bool ends =
        end > before && end <= static_cast<uint64_t>(piece.count) &&
        token_at(piece, static_cast<int64_t>(end) - 1) == static_cast<uint32_t>(end_of_document);
    if (!ends) return fmt::format("by its .ends a document ends at {}, but none does", end);
    before = end;
  }
  return std::nullopt;
}

// Null, and a problem more, where its files are not those that the tokens were made with.
std::unique_ptr<Tokenizer> tokenizer_in(const fs::path& folder, const TokenIndex& index,
                                        std::vector<std::string>& problems) {
  try {
    auto tokenizer = load_tokenizer(folder);
    if (tokenizer->hash() == index.tokenizer_hash) return tokenizer;
    problems.push_back(
        fmt::format("{}: its tokenizer is not the one that its tokens are of", folder.string()));
  } catch (const Error& error) {
    problems.emplace_back(error.what());
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> verify_token_folder(
    const fs::path& folder, const std::function<void(int64_t done, int64_t total)>& on_progress) {
  TokenIndex index = read_token_index(folder);
  std::vector<std::string> problems;
  if (!index.finished) {
    problems.push_back(fmt::format("{}: the text is not tokenized to its end", folder.string()));
    index.finished = true;  // what there is can be looked at
  }
  const auto tokenizer = tokenizer_in(folder, index, problems);
  int64_t done = 0;
  const auto show_progress = [&] {
    if (on_progress) on_progress(done, index.tokens() * index.width);
  };
  show_progress();
  for (const TokenFile& file : index.files) {
    TokenIndex of_file = index;
    of_file.files = {file};
    try {
      const TrainingTokens tokens = open_token_folder(folder, of_file);
      const TokenPiece& piece = tokens.pieces().front();
      const auto add = [&](const std::optional<std::string>& problem) {
        if (problem) problems.push_back(fmt::format("{}: {}", piece.name, *problem));
      };
      if (XXH3_64bits(piece.tokens, piece.count * piece.width) != file.hash) {
        add("its bytes are not those that were written");
      }
      add(wrong_token(piece, index.vocab_size));
      if (tokenizer != nullptr) add(wrong_end(piece, tokenizer->end_of_document()));
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
    done += file.tokens * index.width;
    show_progress();
  }
  return problems;
}

}  // namespace attnres
