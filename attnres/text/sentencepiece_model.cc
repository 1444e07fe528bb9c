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

// Numbers of fields of the trainer's settings.
constexpr uint64_t kAlgorithm = 3, kUnknownPiece = 45, kBeginPiece = 46, kEndPiece = 47;

// Fields to write, one after the other.
class MessageBytes {
 public:
  void add(uint64_t id, uint64_t number) {
    add_varint(id << 3);
    add_varint(number);
  }
  void add(uint64_t id, float number) {
    add_varint(id << 3 | 5);
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void add(uint64_t id, std::string_view bytes) {
    add_varint(id << 3 | 2);
    add_varint(bytes.size());
    bytes_ += bytes;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void add_varint(uint64_t number) {
    for (; number >= 0x80; number >>= 7) bytes_ += static_cast<char>(number | 0x80);
    bytes_ += static_cast<char>(number);
  }

  std::string bytes_;
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

// Throws Error where a table of characters to replace leads outside of itself: SentencePiece goes
// where it leads. It is the size of a trie, the trie, and the texts in the characters' place, each
// with a zero at its end. The trie is github.com/s-yata/darts-clone's: each unit has a label, or is
// a value, where bit 31 is set; by its offset and a byte one comes to the next unit.
void check_characters(std::string_view table, const std::string& what) {
  const auto demand = [&](bool sound) {
    require(sound, "{}: not a SentencePiece model: its table of characters to replace is damaged",
            what);
  };
  uint32_t bytes = 0;
  demand(table.size() > sizeof(bytes) && table.back() == '\0');
  std::memcpy(&bytes, table.data(), sizeof(bytes));
  table.remove_prefix(sizeof(bytes));
  demand(bytes > 0 && bytes % sizeof(uint32_t) == 0 && bytes < table.size());
  std::vector<uint32_t> units(bytes / sizeof(uint32_t));
  std::memcpy(units.data(), table.data(), bytes);
  const size_t texts = table.size() - bytes;
  constexpr uint32_t kValue = 1U << 31, kHasValue = 1U << 8, kFar = 1U << 9;
  for (size_t i = 0; i < units.size(); ++i) {
    const uint32_t unit = units[i];
    if ((unit & kValue) != 0) continue;
    const uint32_t offset = (unit >> 10) << ((unit & kFar) != 0 ? 8 : 0);
    const size_t next = i ^ offset;
    demand((next | 0xff) < units.size());
    demand((unit & kHasValue) == 0 || (units[next] & ~kValue) < texts);
  }
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
      if (setting.id == kAlgorithm) {
        model.algorithm = static_cast<SentencePieceModel::Algorithm>(setting.number);
      }
      if (setting.id == kUnknownPiece) model.unknown = setting.bytes;
      if (setting.id == kBeginPiece) model.begin = setting.bytes;
      if (setting.id == kEndPiece) model.end = setting.bytes;
    }
    const bool replaces_back = field.id == 5;  // when tokens become text
    while ((field.id == 3 || replaces_back) && inner.next(setting)) {
      if (setting.id == 2 && !setting.bytes.empty()) check_characters(setting.bytes, what);
      if (replaces_back) continue;
      if (setting.id == 2) model.replaces_characters = !setting.bytes.empty();
      if (setting.id == 3) model.adds_space = setting.number != 0;
      if (setting.id == 4) model.removes_extra_spaces = setting.number != 0;
    }
  }
  return model;
}

std::string write_sentencepiece_model(const SentencePieceModel& model) {
  MessageBytes file;
  bool has_bytes = false;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    MessageBytes message;
    message.add(1, std::string_view(piece.text));
    message.add(2, piece.score);
    message.add(3, static_cast<uint64_t>(piece.type));
    file.add(1, std::string_view(message.bytes()));
    has_bytes = has_bytes || piece.type == SentencePieceModel::Type::byte;
  }
  constexpr uint64_t kByteFallback = 35;
  MessageBytes trainer, normalizer;
  trainer.add(kAlgorithm, static_cast<uint64_t>(model.algorithm));
  trainer.add(kByteFallback, uint64_t{has_bytes});
  trainer.add(kUnknownPiece, std::string_view(model.unknown));
  trainer.add(kBeginPiece, std::string_view(model.begin));
  trainer.add(kEndPiece, std::string_view(model.end));
  normalizer.add(1, std::string_view("identity"));
  normalizer.add(3, uint64_t{model.adds_space});
  normalizer.add(4, uint64_t{model.removes_extra_spaces});
  file.add(2, std::string_view(trainer.bytes()));
  file.add(3, std::string_view(normalizer.bytes()));
  return file.bytes();
}

}  // namespace attnres
