#include "attnres/train/text/plain_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "attnres/support/error.h"
#include "attnres/support/random.h"
#include "attnres/text/bytes.h"
#include "attnres/train/text/token_cache.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

uint64_t hash_tokens(const Split& split) {
  uint64_t hash = hash_bytes("");
  for (const auto* tokens : {&split.train.tokens, &split.validation.tokens}) {
    hash = hash_bytes({reinterpret_cast<const char*>(tokens->data()), tokens->size() * 4}, hash);
  }
  return hash;
}

// All that decides which tokens a text becomes.
std::string cache_key(const PlainText& text, const Recipe& recipe, const Tokenizer* given) {
  const std::string tokenizer =
      given != nullptr ? fmt::format("{:x}", given->hash())
                       : fmt::format("{} {}", recipe.tokenizer.kind, recipe.tokenizer.vocab_size);
  return fmt::format("{:x} {:x} rule {} fraction {} least {} grows {} context {} tokenizer {}",
                     text.corpus.hash, text.validation.hash, static_cast<int>(text.rule),
                     recipe.data.validation_fraction, text.least_validation_bytes, text.may_grow,
                     recipe.train.context, tokenizer);
}

class Tokenizing {
 public:
  Tokenizing(const PlainText& text, const Recipe& recipe, std::shared_ptr<const Tokenizer> given)
      : text_(text), recipe_(recipe), is_given_(given != nullptr), tokenizer_(std::move(given)) {}

  // Leaves the tokenizer, the split and the least bytes that it took.
  void run() {
    switch (text_.rule) {
      case SplitRule::given:
        tokenize_as({passages_of(text_.corpus), passages_of(text_.validation)});
        return;
      case SplitRule::by_file:
      case SplitRule::end:
        tokenize_as(split_by_file(text_.corpus));
        return;
      case SplitRule::by_size:
        least_ = within_half(least_);
        hold_out();
        // A token can have many bytes.
        while (text_.may_grow && std::ssize(split_.validation.tokens) < recipe_.train.context &&
               within_half(2 * least_) > least_) {
          least_ = within_half(2 * least_);
          hold_out();
        }
    }
  }

  std::shared_ptr<const Tokenizer>& tokenizer() { return tokenizer_; }
  Split& split() { return split_; }
  int64_t least() const { return least_; }

 private:
  int64_t within_half(int64_t bytes) const {
    return text_.may_be_short ? std::clamp<int64_t>(text_.corpus.bytes / 2, 1, bytes) : bytes;
  }
  void hold_out() {
    tokenize_as(split_by_size(text_.corpus, recipe_.data.validation_fraction, least_));
  }
  void tokenize_as(const DocumentSplit& documents) {
    if (!is_given_) tokenizer_ = make_tokenizer(recipe_.tokenizer, documents.train);
    split_ = tokenize(documents, *tokenizer_);
  }

  const PlainText& text_;
  const Recipe& recipe_;
  bool is_given_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Split split_;
  int64_t least_ = text_.least_validation_bytes;
};

}  // namespace

TokenizedText tokenize_plain_text(const PlainText& text, const Recipe& recipe,
                                  std::shared_ptr<const Tokenizer> given, const fs::path& runs,
                                  TrainObserver& observer) {
  const bool is_bytes = (given ? given->kind() : recipe.tokenizer.kind) == ByteTokenizer().kind();
  fs::path kept;
  if (!runs.empty() && !is_bytes) {
    kept = cached_tokens_path(runs, cache_key(text, recipe, given.get()));
    if (std::optional<CachedTokens> cached = find_cached_tokens(kept)) {
      return {.tokenizer = std::move(cached->tokenizer),
              .train = std::move(cached->train),
              .validation = std::move(cached->validation),
              .least_validation_bytes = cached->note.at(kLeastBytesKept),
              .tokens_hash = cached->note.at(kTokensHashKept)};
    }
  }
  observer.on_activity("tokenizing");
  Tokenizing tokenizing(text, recipe, std::move(given));
  tokenizing.run();
  const uint64_t hash = hash_tokens(tokenizing.split());
  if (!kept.empty()) {
    try {
      keep_tokens(kept, tokenizing.split(), *tokenizing.tokenizer(),
                  {{kLeastBytesKept, tokenizing.least()}, {kTokensHashKept, hash}});
    } catch (const Error& error) {
      observer.on_message(
          fmt::format("warning: the tokens are not kept for further runs: {}", error.what()));
    }
  }
  return {.tokenizer = std::move(tokenizing.tokenizer()),
          .train = TrainingTokens(std::move(tokenizing.split().train.tokens)),
          .validation = std::move(tokenizing.split().validation.tokens),
          .least_validation_bytes = tokenizing.least(),
          .tokens_hash = hash};
}

}  // namespace attnres
