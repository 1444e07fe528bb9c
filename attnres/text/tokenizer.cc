#include "attnres/text/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <exception>
#include <nlohmann/json.hpp>

#include "attnres/support/config.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/random.h"
#include "attnres/text/bytes.h"
#include "attnres/text/hugging_face/bpe_tokenizer.h"
#include "attnres/text/hugging_face/bpe_trainer.h"
#include "attnres/text/hugging_face/tiktoken.h"
#include "attnres/text/ids.h"
#include "attnres/text/passage.h"
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

uint64_t Tokenizer::hash() const {
  return hash_bytes(definition(),
                    hash_bytes(fmt::format("{} {} {}", kind(), vocab_size(), end_of_document())));
}

namespace {

std::vector<int32_t> begun(std::string_view text, const Tokenizer& tokenizer) {
  const TextFrame& frame = tokenizer.frame();
  std::vector<int32_t> ids = frame.before;
  if (text.starts_with(frame.before_text)) text.remove_prefix(frame.before_text.size());
  const std::vector<int32_t> more = tokenizer.encode(text);
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

}  // namespace

std::vector<int32_t> prompt_ids(const std::string& text, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = begun(text, tokenizer);
  if (ids.empty()) ids.push_back(tokenizer.end_of_document());
  return ids;
}

std::vector<int32_t> encode_framed(std::string_view text, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = begun(text, tokenizer);
  const std::vector<int32_t>& after = tokenizer.frame().after;
  ids.insert(ids.end(), after.begin(), after.end());
  return ids;
}

namespace {

// What the tokenizer_config.json beside a tokenizer's file says; where older programs saved it, the
// tokens at a text's begin and end are named in special_tokens_map.json.
Json config_beside(const fs::path& path) {
  const auto read = [&](const char* name) {
    const fs::path file = path.parent_path() / name;
    return path_exists(file) ? read_json(file) : Json::object();
  };
  Json config = read("tokenizer_config.json");
  for (const char* key : {"bos_token", "eos_token"}) {
    if (!config.is_object() || !named_token(config, key).empty()) continue;
    const std::string name = named_token(read("special_tokens_map.json"), key);
    if (!name.empty()) config[key] = name;
  }
  return config;
}

// The byte tokenizer's own file, or one with byte-pair encoding.
std::unique_ptr<Tokenizer> load_tokenizer_json(const fs::path& path) {
  std::string text = read_file(path);
  TokenizerJson parts = read_tokenizer_json(text, path.string());
  Json config = config_beside(path);
  if (is_byte_tokenizer(parts, config)) return std::make_unique<ByteTokenizer>();
  return std::make_unique<BpeTokenizer>(std::move(parts),
                                        TokenizerFile{"tokenizer.json", std::move(text)},
                                        std::move(config), path.string());
}

// One whose own end of a document is also the folder's.
std::unique_ptr<Tokenizer> load_sentencepiece(const fs::path& path) {
  const Json config = config_beside(path);
  auto tokenizer = std::make_unique<SentencePieceTokenizer>(
      read_file(path), path.string(),
      SentencePieceFrame{.begin = named_flag(config, "add_bos_token", true),
                         .end = named_flag(config, "add_eos_token", false),
                         .begin_piece = named_token(config, "bos_token")});
  const std::string named = named_token(config, "eos_token");
  if (!named.empty() && named != tokenizer->end_piece()) {
    throw UnreadTokenizer(fmt::format(
        "{}: ends documents with '{}', but tokenizer_config.json names '{}' as eos_token, which is "
        "read only of a tokenizer.json: let transformers write one beside it "
        "(AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)); score and generate take token "
        "ids without a tokenizer (--ids)",
        path.string(), tokenizer->end_piece(), one_line(named)));
  }
  return tokenizer;
}

std::unique_ptr<Tokenizer> load_tiktoken(const fs::path& path) {
  std::string text = read_file(path);
  const Json config = config_beside(path);
  TokenizerJson parts = read_tiktoken(text, config, path.string());
  return std::make_unique<BpeTokenizer>(
      std::move(parts), TokenizerFile{"tiktoken.model", std::move(text)}, config, path.string());
}

// Other forms of a tokenizer, which transformers makes a tokenizer.json of.
std::string what_to_do_without(const fs::path& folder) {
  for (const char* name : {"vocab.json", "vocab.txt", "tekken.json", "spiece.model"}) {
    if (path_exists(folder / name)) {
      return fmt::format(
          "; transformers makes the first of {}: AutoTokenizer.from_pretrained(DIR)"
          ".save_pretrained(DIR)",
          name);
    }
  }
  return "; put the files of the model's tokenizer beside it";
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& folder) {
  // Where a model has several files, the first that is read counts: tokenizer.json also has the
  // tokens that were added to a tokenizer.model. Where none is, the first says why.
  std::exception_ptr unread;
  const auto reading = [&](const char* name, auto&& read) -> std::unique_ptr<Tokenizer> {
    const fs::path path = folder / name;
    if (!path_exists(path)) return nullptr;
    try {
      return read(path);
    } catch (const UnreadTokenizer&) {
      if (!unread) unread = std::current_exception();
      return nullptr;
    }
  };
  std::unique_ptr<Tokenizer> tokenizer =
      reading("tokenizer.json", [](const fs::path& path) { return load_tokenizer_json(path); });
  if (tokenizer == nullptr) tokenizer = reading("tokenizer.model", load_sentencepiece);
  if (tokenizer == nullptr) tokenizer = reading("tiktoken.model", load_tiktoken);
  if (tokenizer != nullptr) return tokenizer;
  if (unread) std::rethrow_exception(unread);
  throw UnreadTokenizer(fmt::format(
      "{}: no tokenizer for text here; expected tokenizer.json (byte-pair encoding, or bytes), "
      "tokenizer.model (SentencePiece) or tiktoken.model (Kimi's){}; score, generate and inspect "
      "take token ids without one (--ids), train and eval tokenized files",
      folder.string(), what_to_do_without(folder)));
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
  check_config(*this, "tokenizer");
  if (kind == "bytes") {
    require_usage(vocab_size == 256,
                  "tokenizer.vocab_size: the byte tokenizer has 256 tokens, not {}; leave it out, "
                  "or choose tokenizer.kind sentencepiece or bpe",
                  vocab_size);
  } else if (kind == "sentencepiece") {
    require_usage(vocab_size >= kSmallestSentencePieceVocabulary,
                  "tokenizer.vocab_size: a SentencePiece vocabulary has at least {} tokens (256 "
                  "bytes, three control tokens and the text's characters), got {}; 4096 is usual "
                  "for small models",
                  kSmallestSentencePieceVocabulary, vocab_size);
  } else if (kind == "bpe") {
    require_usage(vocab_size >= kSmallestBpeVocabulary,
                  "tokenizer.vocab_size: a byte-pair vocabulary has at least {} tokens (256 bytes "
                  "and the end of a document), got {}; 4096 is usual for small models",
                  kSmallestBpeVocabulary, vocab_size);
  }
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerConfig& config,
                                          const std::vector<Passage>& training_text) {
  config.check();
  require_usage(config.kind != kIds,
                "tokenizer.kind: ids are of a model without a tokenizer (train --from MODEL --data "
                "IDS.bin); no text becomes ids");
  if (config.kind == "bytes") return std::make_unique<ByteTokenizer>();
  if (config.kind == "bpe") {
    return std::make_unique<BpeTokenizer>(train_bpe(training_text, config.vocab_size),
                                          Json::object(), "trained tokenizer");
  }
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
