// What a SentencePiece model file says, for programs that tokenize by it themselves. The file is a
// serialized ModelProto of github.com/google/sentencepiece, src/sentencepiece_model.proto.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attnres {

struct SentencePieceModel {
  enum class Type { normal = 1, unknown, control, user_defined, unused, byte };
  struct Piece {
    std::string text;  // spaces are written as U+2581, the byte 0x41 as <0x41>
    float score = 0;
    Type type = Type::normal;
  };
  enum class Algorithm { unigram = 1, byte_pairs, word, character };

  std::vector<Piece> pieces;  // by token id
  Algorithm algorithm = Algorithm::unigram;
  bool replaces_characters = false;  // by a table of normalisation, before tokenizing
  bool removes_extra_spaces = true;
  bool adds_space = true;  // before every text
  // The pieces that stand for what no piece is, and for a text's begin and end.
  std::string unknown = "<unk>", begin = "<s>", end = "</s>";
};

// `bytes`: those of a tokenizer.model; `what` names it in errors. Throws Error where they end
// inside a field, and where their table of characters to replace leads outside of itself.
SentencePieceModel read_sentencepiece_model(std::string_view bytes, const std::string& what);
// The bytes of a file that says this, of a model that replaces no characters.
std::string write_sentencepiece_model(const SentencePieceModel& model);

}  // namespace attnres
