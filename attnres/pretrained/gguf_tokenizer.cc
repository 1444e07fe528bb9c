#include "attnres/pretrained/gguf_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <variant>

#include "attnres/pretrained/gguf_pre_tokenizer.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/text/bytes.h"
#include "attnres/text/hugging_face/bpe_tokenizer.h"
#include "attnres/text/hugging_face/post_processor.h"
#include "attnres/text/ids.h"
#include "attnres/text/sentencepiece.h"
#include "attnres/text/sentencepiece_model.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace {

constexpr const char* kNoVocabulary = "no_vocab";  // llama.cpp's word
constexpr const char* kBegin = "tokenizer.ggml.bos_token_id";
constexpr const char* kEnd = "tokenizer.ggml.eos_token_id";
constexpr const char* kAddBegin = "tokenizer.ggml.add_bos_token";
constexpr const char* kAddEnd = "tokenizer.ggml.add_eos_token";

using Piece = SentencePieceModel::Piece;
using Type = SentencePieceModel::Type;  // whose numbers are GGUF's token types, too

SentencePieceModel mergeable_model(const SentencePieceTokenizer& tokenizer) {
  SentencePieceModel model = read_sentencepiece_model(tokenizer.model(), "tokenizer.model");
  require(model.algorithm == SentencePieceModel::Algorithm::byte_pairs,
          "tokenizer.model: llama.cpp tokenizes as SentencePiece does only with byte-pair models, "
          "and this one is of another kind; train with tokenizer.kind sentencepiece, or write "
          "safetensors");
  require(!model.replaces_characters && !model.removes_extra_spaces,
          "tokenizer.model: this SentencePiece model {}, which llama.cpp does not do; write "
          "safetensors",
          model.replaces_characters ? "replaces characters before it tokenizes"
                                    : "removes extra spaces");
  return model;
}

std::vector<Piece> byte_pieces() {
  std::vector<Piece> pieces;
  for (const std::string& character : gpt2_byte_characters()) pieces.push_back({character});
  return pieces;
}

void add_pieces(std::vector<Piece> pieces, int64_t vocab_size, GgufMetadata& metadata) {
  constexpr float kNeverMerged = -1e6;
  while (static_cast<int64_t>(pieces.size()) < vocab_size) {
    pieces.push_back({fmt::format("[UNUSED{}]", pieces.size()), kNeverMerged, Type::unused});
  }
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const Piece& piece : pieces) {
    texts.push_back(piece.text);
    scores.push_back(piece.score);
    types.push_back(static_cast<int32_t>(piece.type));
  }
  metadata.emplace_back("tokenizer.ggml.tokens", std::move(texts));
  metadata.emplace_back("tokenizer.ggml.scores", std::move(scores));
  metadata.emplace_back("tokenizer.ggml.token_type", std::move(types));
}

uint32_t unknown_id(const std::vector<Piece>& pieces) {
  uint32_t id = 0;
  while (id < pieces.size() && pieces[id].type != Type::unknown) ++id;
  return id;
}

template <class T>
const std::vector<T>* find_list(const GgufFile& file, const char* key) {
  const GgufValue* value = file.find(key);
  return value == nullptr ? nullptr : std::get_if<std::vector<T>>(value);
}

// The vocabulary, without the unused tokens at its end.
std::vector<Piece> read_pieces(const GgufFile& file) {
  const auto* texts = find_list<std::string>(file, "tokenizer.ggml.tokens");
  const auto* scores = find_list<float>(file, "tokenizer.ggml.scores");
  const auto* types = find_list<int32_t>(file, "tokenizer.ggml.token_type");
  require(texts != nullptr && !texts->empty(), "{}: the list tokenizer.ggml.tokens is missing",
          file.path());
  const auto fits = [&](const auto* list) {
    return list == nullptr || list->size() == texts->size();
  };
  require(fits(scores) && fits(types),
          "{}: tokenizer.ggml.scores and token_type: expected {} each, as there are tokens",
          file.path(), texts->size());
  std::vector<Piece> pieces;
  for (size_t i = 0; i < texts->size(); ++i) {
    const int32_t type = types == nullptr ? 1 : (*types)[i];
    require(type >= static_cast<int32_t>(Type::normal) && type <= static_cast<int32_t>(Type::byte),
            "{}: tokenizer.ggml.token_type: token {} is of the unknown type {}", file.path(), i,
            type);
    pieces.push_back({(*texts)[i], scores == nullptr ? 0 : (*scores)[i], static_cast<Type>(type)});
  }
  while (!pieces.empty() && pieces.back().type == Type::unused) pieces.pop_back();
  return pieces;
}

// The token that a key names; `otherwise` without such a key.
std::string named_piece(const GgufFile& file, const char* key, const std::vector<Piece>& pieces,
                        const std::string& otherwise) {
  const GgufValue* value = file.find(key);
  if (value == nullptr) return otherwise;
  const auto* id = std::get_if<uint32_t>(value);
  require(id != nullptr && *id < pieces.size(), "{}: {}: is not the number of a token", file.path(),
          key);
  return pieces[*id].text;
}

// SentencePiece has one unknown piece. Files call what they fill a vocabulary up with unknown, too,
// and the unknown piece a control token.
void keep_one_unknown(const GgufFile& file, std::vector<Piece>& pieces) {
  const std::string key = "tokenizer.ggml.unknown_token_id";
  if (file.find(key) == nullptr) return;
  const std::string text = named_piece(file, key.c_str(), pieces, "");
  for (Piece& piece : pieces) {
    if (piece.type == Type::unknown) piece.type = Type::unused;
    if (piece.text == text) piece.type = Type::unknown;
  }
  while (pieces.back().type == Type::unused) pieces.pop_back();
}

std::unique_ptr<Tokenizer> read_sentencepiece(const GgufFile& file) {
  if (file.find("tokenizer.ggml.precompiled_charsmap") != nullptr) {
    throw UnreadTokenizer(fmt::format(
        "{}: its tokenizer replaces characters (tokenizer.ggml.precompiled_charsmap), which is not "
        "read from GGUF; score and generate take token ids without one (--ids)",
        file.path()));
  }
  SentencePieceModel model;
  model.algorithm = SentencePieceModel::Algorithm::byte_pairs;
  model.pieces = read_pieces(file);
  keep_one_unknown(file, model.pieces);
  model.adds_space = file.flag("tokenizer.ggml.add_space_prefix", true);
  model.removes_extra_spaces = file.flag("tokenizer.ggml.remove_extra_whitespaces", false);
  const auto named = [&](const char* key, const std::string& otherwise) {
    return named_piece(file, key, model.pieces, otherwise);
  };
  model.unknown = named("tokenizer.ggml.unknown_token_id", model.unknown);
  model.begin = named(kBegin, model.begin);
  model.end = named(kEnd, model.end);
  const bool has_end = std::any_of(model.pieces.begin(), model.pieces.end(),
                                   [&](const Piece& piece) { return piece.text == model.end; });
  if (!has_end) {
    throw UnreadTokenizer(fmt::format(
        "{}: which token ends a document: none is named; name one as {}", file.path(), kEnd));
  }
  return std::make_unique<SentencePieceTokenizer>(
      write_sentencepiece_model(model), file.path(),
      SentencePieceFrame{.begin = file.flag(kAddBegin, true), .end = file.flag(kAddEnd, false)});
}

bool are_bytes(const std::vector<Piece>& pieces) {
  const std::vector<std::string> characters = gpt2_byte_characters();
  return std::equal(pieces.begin(), pieces.end(), characters.begin(), characters.end(),
                    [&](const Piece& piece, const std::string& character) {
                      const bool is_end = &piece == pieces.data();  // byte 0
                      return piece.text == character && (piece.type == Type::normal ||
                                                         (is_end && piece.type == Type::control));
                    });
}

BpeModel::Merges read_merges(const GgufFile& file) {
  BpeModel::Merges merges;
  const auto* lines = find_list<std::string>(file, "tokenizer.ggml.merges");
  if (lines == nullptr) return merges;
  const std::string what = file.path() + ": tokenizer.ggml.merges";
  for (const std::string& line : *lines) {
    require_utf8(line, what);
    const size_t space = line.find(' ');
    if (space == std::string::npos) fail("{}: expected two tokens, found {}", what, one_line(line));
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}

// What tokenizer_config.json would say of the tokens at a text's begin and end.
Json named_tokens(const GgufFile& file, const std::vector<Piece>& pieces) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false},
                 {"eos_token", named_piece(file, kEnd, pieces, "")}};
  const std::string begin = named_piece(file, kBegin, pieces, "");
  if (!begin.empty()) config["bos_token"] = begin;
  return config;
}

// With the file's tokens around a text as its post-processor.
TokenizerJson with_frame(const GgufFile& file, const std::vector<Piece>& pieces,
                         TokenizerJson tokenizer) {
  const auto token = [&](const char* key) -> std::vector<FrameToken> {
    const std::string text = named_piece(file, key, pieces, "");
    if (text.empty()) return {};
    return {{text, static_cast<int32_t>(std::get<uint32_t>(*file.find(key)))}};
  };
  std::vector<FrameToken> before, after;
  if (file.flag(kAddBegin, adds_begin_of_pre(file.text("tokenizer.ggml.pre", "none")))) {
    before = token(kBegin);
  }
  if (file.flag(kAddEnd, false)) after = token(kEnd);
  if (!before.empty() || !after.empty()) {
    tokenizer.post_processor = write_post_processor(before, after);
  }
  return tokenizer;
}

std::unique_ptr<Tokenizer> read_byte_pairs(const GgufFile& file, const std::vector<Piece>& pieces) {
  const std::string pre = file.text("tokenizer.ggml.pre", "none");
  std::optional<TokenizerJson> tokenizer = tokenizer_of_pre(pre);
  if (!tokenizer) {
    throw UnreadTokenizer(fmt::format(
        "{}: its tokenizer splits text as '{}' (tokenizer.ggml.pre), which is not read; known: {}; "
        "score and generate take token ids without one (--ids)",
        file.path(), one_line(pre), known_pre_tokenizers()));
  }
  const std::string what = file.path() + ": tokenizer.ggml.tokens";
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto& [text, score, type] = pieces[i];
    require_utf8(text, what);  // bytes are written as characters
    const auto id = static_cast<int32_t>(i);
    if (type == Type::unused) continue;
    if (type == Type::control || type == Type::user_defined) {
      tokenizer->added_tokens.push_back(
          {.id = id, .content = text, .special = type == Type::control});
    } else {
      tokenizer->vocabulary.emplace_back(text, id);
    }
  }
  tokenizer->merges = read_merges(file);
  return std::make_unique<BpeTokenizer>(with_frame(file, pieces, *std::move(tokenizer)),
                                        named_tokens(file, pieces), file.path(), kEnd);
}

std::unique_ptr<Tokenizer> read_gpt2(const GgufFile& file) {
  const std::vector<Piece> pieces = read_pieces(file);
  const auto* merges = find_list<std::string>(file, "tokenizer.ggml.merges");
  auto bytes = std::make_unique<ByteTokenizer>();
  const std::string end = gpt2_byte_characters()[bytes->end_of_document()];
  if ((merges == nullptr || merges->empty()) && are_bytes(pieces) &&
      named_piece(file, kEnd, pieces, end) == end && !file.flag(kAddBegin, false)) {
    return bytes;
  }
  return read_byte_pairs(file, pieces);
}

// The vocabulary with its control tokens, and numbers that no token has as unused ones.
std::vector<Piece> byte_pair_pieces(const TokenizerJson& tokenizer) {
  std::vector<Piece> pieces;
  const auto set = [&](int32_t id, const std::string& text, Type type) {
    while (static_cast<int32_t>(pieces.size()) <= id) {
      pieces.push_back({fmt::format("[UNUSED{}]", pieces.size()), 0, Type::unused});
    }
    pieces[id] = {text, 0, type};
  };
  for (const auto& [text, id] : tokenizer.vocabulary) set(id, text, Type::normal);
  for (const AddedToken& token : tokenizer.added_tokens) {
    set(token.id, token.content, token.special ? Type::control : Type::user_defined);
  }
  return pieces;
}

GgufMetadata byte_pair_metadata(const TokenizerJson& tokenizer, int64_t vocab_size) {
  const std::optional<std::string> pre = gguf_pre_tokenizer(tokenizer);
  require(pre.has_value(),
          "tokenizer.json: llama.cpp knows no tokenizer that splits text as this one does (it "
          "knows {}); write safetensors",
          known_pre_tokenizers());
  GgufMetadata metadata = {{"tokenizer.ggml.model", "gpt2"}, {"tokenizer.ggml.pre", *pre}};
  add_pieces(byte_pair_pieces(tokenizer), vocab_size, metadata);
  std::vector<std::string> merges;
  for (const auto& [left, right] : tokenizer.merges) {
    merges.push_back(fmt::format("{} {}", left, right));
  }
  metadata.emplace_back("tokenizer.ggml.merges", std::move(merges));
  return metadata;
}

void add_frame(const Tokenizer& tokenizer, GgufMetadata& metadata) {
  const int32_t end = tokenizer.end_of_document();
  const auto& [before, after, before_text] = tokenizer.frame();
  require(
      before.size() <= 1 && (after.empty() || after == std::vector{end}),
      "the tokenizer puts {} tokens before a text and {} after it, and llama.cpp one at most, of "
      "which the last is the end of a document; write safetensors",
      before.size(), after.size());
  const int32_t begin = before.empty() ? tokenizer.begin_of_text().value_or(end) : before[0];
  metadata.emplace_back(kBegin, static_cast<uint32_t>(begin));
  metadata.emplace_back(kEnd, static_cast<uint32_t>(end));
  metadata.emplace_back(kAddBegin, !before.empty());
  metadata.emplace_back(kAddEnd, !after.empty());
}

}  // namespace

GgufMetadata gguf_tokenizer(const Tokenizer& tokenizer, int64_t vocab_size) {
  GgufMetadata metadata;
  if (const auto* pieces = dynamic_cast<const SentencePieceTokenizer*>(&tokenizer)) {
    const SentencePieceModel model = mergeable_model(*pieces);
    metadata = {{"tokenizer.ggml.model", "llama"},
                {"tokenizer.ggml.pre", "default"},
                {"tokenizer.ggml.unknown_token_id", unknown_id(model.pieces)},
                {"tokenizer.ggml.add_space_prefix", model.adds_space}};
    add_pieces(model.pieces, vocab_size, metadata);
  } else if (const auto* pairs = dynamic_cast<const BpeTokenizer*>(&tokenizer)) {
    metadata = byte_pair_metadata(pairs->parts(), vocab_size);
  } else if (tokenizer.kind() == kIds) {
    return gguf_without_tokenizer();
  } else {
    metadata = {{"tokenizer.ggml.model", "gpt2"}, {"tokenizer.ggml.pre", "gpt-2"}};
    add_pieces(byte_pieces(), vocab_size, metadata);
    metadata.emplace_back("tokenizer.ggml.merges", std::vector<std::string>());
  }
  add_frame(tokenizer, metadata);
  return metadata;
}

GgufMetadata gguf_without_tokenizer() {
  return {{"tokenizer.ggml.model", kNoVocabulary}};
}

GgufMetadata gguf_tokenizer_of(const GgufFile& file) {
  GgufMetadata metadata;
  for (const auto& [key, value] : file.metadata()) {
    if (key.starts_with("tokenizer.")) metadata.emplace_back(key, value);
  }
  return metadata;
}

std::unique_ptr<Tokenizer> read_gguf_tokenizer(const GgufFile& file) {
  const std::string model = file.text("tokenizer.ggml.model", kNoVocabulary);
  if (model == "llama") return read_sentencepiece(file);
  if (model == "gpt2") return read_gpt2(file);
  if (model == kNoVocabulary || model == "none") {
    throw UnreadTokenizer(fmt::format(
        "{}: there is no tokenizer in it; score and generate take token ids without one (--ids)",
        file.path()));
  }
  throw UnreadTokenizer(fmt::format(
      "{}: its tokenizer is '{}'; llama (SentencePiece) and gpt2 (byte pairs, bytes) are read; "
      "score and generate take token ids without one (--ids)",
      file.path(), one_line(model)));
}

}  // namespace attnres
