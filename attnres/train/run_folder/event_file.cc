#include "attnres/train/run_folder/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres {
namespace {

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = remainder >> 1 ^ (remainder & 1 ? 0x82F63B78 : 0);  // the polynomial, reversed
    }
    table[byte] = remainder;
  }
  return table;
}

uint32_t masked_check(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8;
}

// Numbers as their bytes, on the little-endian machines that this program runs on.
template <class T>
void add_number(std::string& to, T number) {
  static_assert(std::endian::native == std::endian::little);
  to.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

// A protocol buffer message, field by field.
class Message {
 public:
  void add_double(int field, double value) {
    add_key(field, /*type=*/1);
    add_number(bytes_, value);
  }
  void add_float(int field, float value) {
    add_key(field, /*type=*/5);
    add_number(bytes_, value);
  }
  void add_whole(int field, int64_t value) {
    add_key(field, /*type=*/0);
    add_varint(static_cast<uint64_t>(value));
  }
  void add_bytes(int field, std::string_view value) {
    add_key(field, /*type=*/2);
    add_varint(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void add_key(int field, int type) { add_varint(static_cast<uint64_t>(field << 3 | type)); }
  void add_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// The fields of Event, Summary and Summary.Value that are used.
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
constexpr int kValue = 1;
constexpr int kTag = 1, kSimpleValue = 2;

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t remainder = 0xFFFFFFFF;
  for (const char byte : bytes) {
    remainder = remainder >> 8 ^ kTable[(remainder ^ static_cast<uint8_t>(byte)) & 0xFF];
  }
  return ~remainder;
}

EventFile::EventFile(std::filesystem::path path, double wall_time)
    : path_(std::move(path)),
      descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  require(descriptor_ >= 0, "{}: cannot open: {}", path_.string(), std::strerror(errno));
  Message event;
  event.add_double(kWallTime, wall_time);
  event.add_bytes(kFileVersion, "brain.Event:2");
  append(event.bytes());
}

EventFile::~EventFile() {
  ::close(descriptor_);
}

void EventFile::add(int64_t step, double wall_time, const std::vector<Scalar>& scalars) {
  Message summary;
  for (const Scalar& scalar : scalars) {
    Message value;
    value.add_bytes(kTag, scalar.tag);
    value.add_float(kSimpleValue, static_cast<float>(scalar.value));
    summary.add_bytes(kValue, value.bytes());
  }
  Message event;
  event.add_double(kWallTime, wall_time);
  event.add_whole(kStep, step);
  event.add_bytes(kSummary, summary.bytes());
  append(event.bytes());
}

void EventFile::append(std::string_view message) {
  std::string length;
  add_number(length, static_cast<uint64_t>(message.size()));
  std::string record = length;
  add_number(record, masked_check(length));
  record += message;
  add_number(record, masked_check(message));
  const int error = write_all(descriptor_, record.data(), record.size());
  require(error == 0, "{}: cannot write: {}", path_.string(), write_error(error));
}

}  // namespace attnres
