#include "attnres/data/byte_stream.h"

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "attnres/support/file.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr std::string_view kGzipMagic = "\x1f\x8b", kZstdMagic = "\x28\xb5\x2f\xfd";

class PlainBytes : public ByteStream {
 public:
  explicit PlainBytes(const fs::path& path) : path_(path.string()), file_(path) {}

  size_t read(char* out, size_t count) override {
    size_t done = 0;
    while (done < count) {
      const ssize_t n = ::read(file_.descriptor(), out + done, count - done);
      if (n < 0 && errno == EINTR) continue;
      require(n >= 0, "{}: cannot read: {}", path_, std::strerror(errno));
      if (n == 0) break;
      done += static_cast<size_t>(n);
    }
    consumed_ += static_cast<int64_t>(done);
    return done;
  }
  int64_t consumed() const override { return consumed_; }
  uint64_t bytes() const { return file_.bytes(); }

 private:
  std::string path_;
  InputFile file_;
  int64_t consumed_ = 0;
};

[[noreturn]] void fail_damaged(const std::string& path, const std::string& what) {
  throw DamagedFile(fmt::format(
      "{}: its compressed bytes are damaged, or end too early ({}); restore the file", path, what));
}

// The text of one gzip member after another.
class GzipBytes : public ByteStream {
 public:
  explicit GzipBytes(const fs::path& path)
      : path_(path.string()), file_(path), buffer_(kBufferBytes) {
    require(inflateInit2(&stream_, 15 + 16) == Z_OK, "{}: no memory to read gzip with", path_);
  }
  ~GzipBytes() override { inflateEnd(&stream_); }

  size_t read(char* out, size_t count) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(count);
    while (stream_.avail_out > 0 && damage_.empty()) {
      if (stream_.avail_in == 0) {
        stream_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
        stream_.avail_in = static_cast<uInt>(file_.read(buffer_.data(), buffer_.size()));
        if (stream_.avail_in == 0) {
          if (in_member_) damage_ = "gzip";
          break;
        }
      }
      if (!in_member_) {
        // What follows the last member, such as the zeros of a tape, is nothing, as to gzip.
        if (begun_ && *stream_.next_in != static_cast<Bytef>(kGzipMagic[0])) break;
        begun_ = true;
        inflateReset(&stream_);
        in_member_ = true;
      }
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) {
        in_member_ = false;
      } else if (result != Z_OK) {
        damage_ = stream_.msg != nullptr ? stream_.msg : "gzip";
      }
    }
    const size_t read = count - stream_.avail_out;
    if (read == 0 && !damage_.empty()) fail_damaged(path_, damage_);
    return read;
  }
  int64_t consumed() const override { return file_.consumed(); }

 private:
  std::string path_;
  PlainBytes file_;
  std::vector<char> buffer_;
  z_stream stream_ = {};
  bool in_member_ = false, begun_ = false;
  std::string damage_;  // what is wrong with what comes next
};

// The largest window of zstd that a file of so many bytes may ask memory for, as a power of two:
// what zstd itself takes unasked, or up to what --long=31 writes where the file is an eighth as
// long.
int largest_window(uint64_t bytes) {
  int log = 27;
  while (log < 31 && bytes >= uint64_t{1} << (log + 1 - 3)) ++log;
  return log;
}

// The text of one zstd frame after another.
class ZstdBytes : public ByteStream {
 public:
  explicit ZstdBytes(const fs::path& path)
      : path_(path.string()), file_(path), buffer_(kBufferBytes), stream_(ZSTD_createDStream()) {
    require(stream_ != nullptr, "{}: no memory to read zstd with", path_);
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, largest_window(file_.bytes()));
  }
  ~ZstdBytes() override { ZSTD_freeDStream(stream_); }
  ZstdBytes(const ZstdBytes&) = delete;
  ZstdBytes& operator=(const ZstdBytes&) = delete;

  size_t read(char* out, size_t count) override {
    ZSTD_outBuffer to = {out, count, 0};
    while (to.pos < to.size && damage_.empty()) {
      if (from_.pos == from_.size) {
        from_ = {buffer_.data(), file_.read(buffer_.data(), buffer_.size()), 0};
        if (from_.size == 0) {
          if (in_frame_) damage_ = "zstd";
          break;
        }
      }
      const size_t result = ZSTD_decompressStream(stream_, &to, &from_);
      require(ZSTD_getErrorCode(result) != ZSTD_error_frameParameter_windowTooLarge,
              "{}: to unpack it takes more than {} MiB of memory, too much for so short a file; "
              "unpack it (zstd -d --long=31), and pack it again without --long",
              path_, 1 << (largest_window(file_.bytes()) - 20));
      if (ZSTD_isError(result)) damage_ = ZSTD_getErrorName(result);
      in_frame_ = result != 0;
    }
    if (to.pos == 0 && !damage_.empty()) fail_damaged(path_, damage_);
    return to.pos;
  }
  int64_t consumed() const override { return file_.consumed(); }

 private:
  std::string path_;
  PlainBytes file_;
  std::vector<char> buffer_;
  ZSTD_DStream* stream_;
  ZSTD_inBuffer from_ = {nullptr, 0, 0};
  bool in_frame_ = false;
  std::string damage_;  // what is wrong with what comes next
};

// Whether what follows a line's end may be one word with it: white space, of which Unicode has more
// than ASCII, and slashes, which some tokenizers join to line ends.
bool may_join_line_end(char c) {
  return std::string_view(" \n\t\r\v\f/").find(c) != std::string_view::npos ||
         static_cast<unsigned char>(c) >= 0x80;
}

// Where a text that goes on may be cut, near its end.
size_t place_to_cut(std::string_view text) {
  for (size_t i = text.size() - 1; i > text.size() / 2; --i) {
    if (text[i - 1] == '\n' && !may_join_line_end(text[i])) return i;
  }
  size_t i = text.size();
  while (i > 1 && (static_cast<unsigned char>(text[i - 1]) & 0xc0) == 0x80) --i;
  return i > 1 ? i - 1 : text.size();
}

}  // namespace

std::unique_ptr<ByteStream> open_byte_stream(const fs::path& path) {
  char first[4] = {};
  const size_t count = PlainBytes(path).read(first, sizeof first);
  const std::string_view magic(first, count);
  if (magic.starts_with(kGzipMagic)) return std::make_unique<GzipBytes>(path);
  if (magic == kZstdMagic) return std::make_unique<ZstdBytes>(path);
  return std::make_unique<PlainBytes>(path);
}

BufferedText::BufferedText(const fs::path& path) : bytes_(open_byte_stream(path)) {}

bool BufferedText::fill(size_t wanted) {
  if (ended_) return false;
  buffer_.erase(0, begin_);
  begin_ = 0;
  const size_t had = buffer_.size();
  buffer_.resize(had + wanted);
  const size_t read = bytes_->read(buffer_.data() + had, wanted);
  buffer_.resize(had + read);
  ended_ = read == 0;
  return read > 0;
}

bool BufferedText::read_line(std::string& line, size_t most, bool& whole) {
  line.clear();
  whole = true;
  bool any = false;
  while (begin_ < buffer_.size() || fill(kBufferBytes)) {
    any = true;
    const size_t end = buffer_.find('\n', begin_);
    const size_t stop = std::min(end, buffer_.size());
    const size_t taken = std::min(stop - begin_, most - line.size());
    line.append(buffer_, begin_, taken);
    if (taken < stop - begin_) whole = false;
    begin_ = stop;
    if (end != std::string::npos) {
      ++begin_;
      return true;
    }
  }
  return any;
}

bool BufferedText::read_piece(std::string& piece, size_t size) {
  while (buffer_.size() - begin_ <= size && fill(size)) {
  }
  const std::string_view held = std::string_view(buffer_).substr(begin_);
  if (held.empty()) return false;
  const size_t end =
      ended_ && held.size() <= size ? held.size() : place_to_cut(held.substr(0, size));
  piece.assign(held.substr(0, end));
  begin_ += end;
  return true;
}

}  // namespace attnres
