// A file's bytes one after another, whether or not they are compressed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "attnres/support/error.h"

namespace attnres {

// Compressed bytes that are damaged, or end too early.
class DamagedFile : public Error {
 public:
  using Error::Error;
};

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Up to `count` bytes, none only at the end. Throws Error naming the file where it cannot be
  // read, and DamagedFile when all bytes before the damage were given.
  virtual size_t read(char* out, size_t count) = 0;
  // Bytes of the file that were read so far.
  virtual int64_t consumed() const = 0;
};

// Unpacks gzip and zstd, which the file's first bytes tell, not its name. Throws Error as
// InputFile.
std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path);

// A stream in lines or in pieces, through a buffer.
class BufferedText {
 public:
  explicit BufferedText(const std::filesystem::path& path);

  // The next line, without its end. False at the end of the file. Of a line that is longer than
  // `most` bytes the first ones, and `whole` false.
  bool read_line(std::string& line, size_t most, bool& whole);
  // The next piece of about `size` bytes, up to the last place in it where pre-tokenizers of byte
  // pairs part words: after a line's end before a letter or the like, or else anywhere between two
  // characters. False at the end of the file.
  bool read_piece(std::string& piece, size_t size);
  int64_t consumed() const { return bytes_->consumed(); }

 private:
  bool fill(size_t wanted);  // the buffer; false where no more bytes come

  std::unique_ptr<ByteStream> bytes_;
  std::string buffer_;
  size_t begin_ = 0;  // of what was not given yet
  bool ended_ = false;
};

}  // namespace attnres
