#include "attnres/text/sentencepiece_model.h"

#include <cstdint>
#include <cstring>

#include "attnres/support/error.h"

namespace attnres {
namespace {

// A field of a message: its number, and its value as a number or as bytes.
struct Field {
  uint64_t id = 0;
  uint64_t number = 0;
  std::string_view bytes;
};

// The fields of a message in protobuf's wire format, one after the other.
class Message {
 public:
  Message(std::string_view bytes, const std::string& what) : rest_(bytes), what_(what) {}

  bool next(Field& field) {
    if (rest_.empty()) return false;
    const uint64_t tag = take_varint();
    field = {tag >> 3, 0, {}};
    switch (tag & 7) {
      case 0:
        field.number = take_varint();
        break;
      case 1:
        field.bytes = take(8);
        break;
      case 2:
        field.bytes = take(take_varint());
        break;
      case 5:
        field.bytes = take(4);
        break;
      default:
        fail_damaged();
    }
    return true;
  }

 private:
  std::string_view take(uint64_t count) {
    if (count > rest_.size()) fail_damaged();
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  uint64_t take_varint() {
    uint64_t number = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      number |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return number;
    }
    fail_damaged();
  }

  [[noreturn]] void fail_damaged() const { fail("{}: not a SentencePiece model", what_); }

  std::string_view rest_;
  const std::string& what_;
};

SentencePieceModel::Piece read_piece(Message message) {
  SentencePieceModel::Piece piece;
  for (Field field; message.next(field);) {
    if (field.id == 1) piece.text = field.bytes;
    if (field.id == 2 && field.bytes.size() == sizeof(float)) {
      std::memcpy(&piece.score, field.bytes.data(), sizeof(float));
    }
    if (field.id == 3) piece.type = static_cast<SentencePieceModel::Type>(field.number);
  }
  return piece;
}

}  // namespace

SentencePieceModel read_sentencepiece_model(std::string_view bytes, const std::string& what) {
  SentencePieceModel model;
  Message message(bytes, what);
  for (Field field; message.next(field);) {
    if (field.id == 1) model.pieces.push_back(read_piece(Message(field.bytes, what)));
    Message inner(field.bytes, what);
    Field setting;
    while (field.id == 2 && inner.next(setting)) {
      if (setting.id == 3) {
        model.algorithm = static_cast<SentencePieceModel::Algorithm>(setting.number);
      }
    }
    while (field.id == 3 && inner.next(setting)) {
      if (setting.id == 2) model.replaces_characters = !setting.bytes.empty();
      if (setting.id == 3) model.adds_space = setting.number != 0;
      if (setting.id == 4) model.removes_extra_spaces = setting.number != 0;
    }
  }
  return model;
}

}  // namespace attnres
