#include "attnres/pretrained/gguf_tokenizer.h"

#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "attnres/text/sentencepiece.h"
#include "attnres/text/sentencepiece_model.h"

namespace attnres {
namespace {

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
  } else {
    metadata = {{"tokenizer.ggml.model", "gpt2"}, {"tokenizer.ggml.pre", "gpt-2"}};
    add_pieces(byte_pieces(), vocab_size, metadata);
    metadata.emplace_back("tokenizer.ggml.merges", std::vector<std::string>());
  }
  const auto end = static_cast<uint32_t>(tokenizer.end_of_document());
  metadata.emplace_back("tokenizer.ggml.bos_token_id", end);
  metadata.emplace_back("tokenizer.ggml.eos_token_id", end);
  metadata.emplace_back("tokenizer.ggml.add_bos_token", false);
  metadata.emplace_back("tokenizer.ggml.add_eos_token", false);
  return metadata;
}

}  // namespace attnres
