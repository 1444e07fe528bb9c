// An append-only file of JSON objects, one a line, whose end a checkpoint remembers: resuming cuts
// the file back to it, so that no line is lost or doubled.
#pragma once

#include <cstdint>
#include <filesystem>

#include "attnres/support/json.h"

namespace attnres {

class LineLog {
 public:
  // Keeps the first `keep_bytes` of the file and drops what follows. Throws Error if the file is
  // shorter than that, or cannot be written.
  LineLog(const std::filesystem::path& path, int64_t keep_bytes);
  ~LineLog();
  LineLog(const LineLog&) = delete;
  LineLog& operator=(const LineLog&) = delete;

  // Throws Error when the disk is full; then no part of the line remains.
  void append(const Json& object);
  // Flushes to the disk.
  void sync();
  int64_t bytes() const { return bytes_; }

 private:
  std::filesystem::path path_;
  int descriptor_;
  int64_t bytes_;
};

}  // namespace attnres
