#include "attnres/train/run_folder/line_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres {

LineLog::LineLog(const std::filesystem::path& path, int64_t keep_bytes)
    : path_(path),
      descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)),
      bytes_(keep_bytes) {
  require(descriptor_ >= 0, "{}: cannot open: {}", path.string(), std::strerror(errno));
  const int64_t size = ::lseek(descriptor_, 0, SEEK_END);
  if (size < keep_bytes || (size > keep_bytes && ::ftruncate(descriptor_, keep_bytes) != 0)) {
    ::close(descriptor_);
    fail("{}: expected at least {} bytes, as the checkpoint says, found {}; it was changed since",
         path.string(), keep_bytes, size);
  }
  ::lseek(descriptor_, keep_bytes, SEEK_SET);
}

LineLog::~LineLog() {
  ::close(descriptor_);
}

void LineLog::append(const Json& object) {
  const std::string line = one_line_of(object) + "\n";
  const int error = write_all(descriptor_, line.data(), line.size());
  if (error == 0) {
    bytes_ += static_cast<int64_t>(line.size());
    return;
  }
  if (::ftruncate(descriptor_, bytes_) == 0) ::lseek(descriptor_, bytes_, SEEK_SET);
  fail("{}: cannot write: {}", path_.string(), write_error(error));
}

void LineLog::sync() {
  if (::fsync(descriptor_) == 0) return;
  fail("{}: cannot flush to disk: {}", path_.string(), std::strerror(errno));
}

}  // namespace attnres
