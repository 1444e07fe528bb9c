// Scalars for TensorBoard: a file of records (TFRecord) that hold a message tensorflow.Event each.
//
//   record   uint64 length | uint32 check of it | message | uint32 check of it, little-endian
//   check    ((c >> 15) | (c << 17)) + 0xa282ead8 of c = CRC-32C (RFC 3720)
//
// tensorflow/core/lib/io/record_writer.h and tensorflow/core/util/event.proto say so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace attnres {

struct Scalar {
  std::string tag;  // "loss/train"; what stands before the slash is its group
  double value = 0;
};

// CRC-32C, of 0x1EDC6F41 (Castagnoli).
uint32_t crc32c(std::string_view bytes);

class EventFile {
 public:
  // Begins the file anew. Throws Error where it cannot be written.
  EventFile(std::filesystem::path path, double wall_time);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Scalars of one step, at a time in seconds since 1970. Throws Error when the disk is full.
  void add(int64_t step, double wall_time, const std::vector<Scalar>& scalars);

 private:
  void append(std::string_view message);

  std::filesystem::path path_;
  int descriptor_;
};

}  // namespace attnres
