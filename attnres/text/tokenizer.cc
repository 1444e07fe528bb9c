#include "attnres/text/tokenizer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "attnres/support/file.h"
#include "attnres/support/nearest.h"
#include "attnres/text/bytes.h"
#include "attnres/text/corpus.h"
#include "attnres/text/sentencepiece.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace fs = std::filesystem;

std::string Tokenizer::decode(const std::vector<int32_t>& ids) const {
  std::string text;
  for (const int32_t id : ids) text += token_text(id);
  return text;
}

void Tokenizer::check_id(int32_t id) const {
  require(id >= 0 && id < vocab_size(), "token {}: outside the vocabulary, which has 0 to {}", id,
          vocab_size() - 1);
}

std::vector<int32_t> prompt_ids(const std::string& text, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = tokenizer.encode(text);
  if (ids.empty()) ids.push_back(tokenizer.end_of_document());
  return ids;
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& folder) {
  const fs::path model = folder / "tokenizer.model";
  if (path_exists(model)) {
    return std::make_unique<SentencePieceTokenizer>(read_file(model), model.string());
  }
  const fs::path json = folder / "tokenizer.json";
  if (path_exists(json)) {
    check_byte_tokenizer_json(json);
    return std::make_unique<ByteTokenizer>();
  }
  throw UnreadTokenizer(fmt::format(
      "{}: no tokenizer for text here; expected tokenizer.model (SentencePiece) or tokenizer.json "
      "(bytes); score and generate take token ids without one (--ids)",
      folder.string()));
}

std::vector<fs::path> tokenizer_files(const fs::path& folder) {
  const auto is_one = [](const std::string& name) {
    constexpr std::array kBegins = {"tokeniz",       "vocab",         "merges",   "special_tokens",
                                    "added_tokens",  "chat_template", "tiktoken", "spiece",
                                    "sentencepiece", "tekken"};
    return name.ends_with(".tiktoken") ||
           std::any_of(kBegins.begin(), kBegins.end(),
                       [&](const char* begin) { return name.starts_with(begin); });
  };
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file() && is_one(entry.path().filename().string())) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

void TokenizerConfig::check() const {
  const std::vector<std::string> kinds = {"bytes", "sentencepiece"};
  if (kind == "bytes") {
    require_usage(vocab_size == 256,
                  "tokenizer.vocab_size: the byte tokenizer has 256 tokens, not {}; leave it out, "
                  "or choose tokenizer.kind sentencepiece",
                  vocab_size);
  } else if (kind == "sentencepiece") {
    require_usage(vocab_size >= kSmallestSentencePieceVocabulary && vocab_size <= INT32_MAX,
                  "tokenizer.vocab_size: a SentencePiece vocabulary has at least {} tokens (256 "
                  "bytes, three control tokens and the text's characters), got {}; 4096 is usual "
                  "for small models",
                  kSmallestSentencePieceVocabulary, vocab_size);
  } else {
    fail_usage("tokenizer.kind: unknown kind '{}', did you mean '{}'? Known: {}", kind,
               nearest(kind, kinds), fmt::join(kinds, ", "));
  }
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerConfig& config,
                                          const std::vector<Passage>& training_text) {
  config.check();
  if (config.kind == "bytes") return std::make_unique<ByteTokenizer>();
  return std::make_unique<SentencePieceTokenizer>(
      train_sentencepiece(training_text, config.vocab_size), "trained tokenizer");
}

std::string StreamDecoder::add(int32_t id) {
  held_ += tokenizer_.token_text(id);
  size_t whole = 0;
  while (whole < held_.size()) {
    const Utf8Step step = utf8_step(std::string_view(held_).substr(whole));
    if (step.kind == Utf8Step::Kind::incomplete) break;
    whole += step.bytes;
  }
  const std::string out = replace_invalid_utf8(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
  return out;
}

std::string StreamDecoder::finish() {
  const std::string out = replace_invalid_utf8(held_);
  held_.clear();
  return out;
}

}  // namespace attnres
