#include "attnres/support/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "attnres/support/error.h"
#include "attnres/support/folder_writer.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

std::string last_error() {
  return std::strerror(errno);
}

fs::path with_suffix(const fs::path& path, const char* suffix) {
  const std::string name = path.filename().string();
  require(!name.empty() && name != "." && name != "..", "{}: expected a path that ends in a name",
          path.string());
  return path.parent_path() / (name + suffix);
}

class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    require(fd_ >= 0, "{}: cannot open: {}", path.string(), last_error());
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Flushes a file, or a folder's list of names, to the disk.
void flush(const fs::path& path) {
  const Descriptor file(path, O_RDONLY);
  if (::fsync(file.get()) != 0) fail("{}: cannot flush to disk: {}", path.string(), last_error());
}

void rename_path(const fs::path& from, const fs::path& to) {
  std::error_code code;
  fs::rename(from, to, code);
  require(!code, "{}: cannot rename to {}: {}", from.string(), to.string(), code.message());
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  return S_ISSOCK(mode) ? "a socket" : "a device";
}

// Whether the path leads to this file.
bool is_open_as(int descriptor, const fs::path& path) {
  struct stat held = {}, there = {};
  return ::fstat(descriptor, &held) == 0 && ::stat(path.c_str(), &there) == 0 &&
         held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

// Opens and locks a file, which stands for `what` in errors. Its holders may remove or rename it:
// then, between our opening and our locking, the path has come to lead elsewhere. File systems
// without locks keep nobody out.
int open_and_lock(const fs::path& file, const fs::path& what) {
  while (true) {
    const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    require(descriptor >= 0, "{}: cannot write: {}", what.string(), last_error());
    const bool in_use = ::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!in_use && is_open_as(descriptor, file)) return descriptor;
    ::close(descriptor);
    require(!in_use, "{}: in use by another attnres process; wait for it, or choose another --out",
            what.string());
  }
}

fs::path parent_of(const fs::path& path) {
  const fs::path parent = fs::absolute(path).parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

}  // namespace

bool path_exists(const fs::path& path) {
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  require(fs::status_known(status), "{}: cannot be seen: {}", path.string(), code.message());
  return fs::exists(status);
}

// A pipe opens at once when it need not wait for its other end.
InputFile::InputFile(const fs::path& path)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  require(descriptor_ >= 0 || errno != ENOENT, "{}: no such file", path.string());
  require(descriptor_ >= 0, "{}: cannot open: {}", path.string(), last_error());
  struct stat status = {};
  const bool known = ::fstat(descriptor_, &status) == 0;
  if (known && S_ISREG(status.st_mode)) {
    bytes_ = static_cast<uint64_t>(status.st_size);
    return;
  }
  ::close(descriptor_);
  fail("{}: is {}, expected a file", path.string(), known ? kind_of(status.st_mode) : "unknown");
}

InputFile::~InputFile() {
  ::close(descriptor_);
}

std::string read_file(const fs::path& path) {
  const InputFile file(path);
  std::string text(file.bytes() + 1, '\0');  // one more byte to see the end in
  size_t end = 0;
  while (true) {
    if (end == text.size()) text.resize(2 * end);  // it grew since
    const ssize_t n = ::read(file.descriptor(), text.data() + end, text.size() - end);
    if (n < 0 && errno == EINTR) continue;
    require(n >= 0, "{}: cannot read: {}", path.string(), last_error());
    if (n == 0) break;
    end += static_cast<size_t>(n);
  }
  text.resize(end);
  return text;
}

void write_file(const fs::path& path, std::string_view text) {
  AtomicWriter writer(path);
  writer.write(text.data(), text.size());
  writer.finish();
}

void rewrite_file(const fs::path& path, std::string_view text) {
  constexpr size_t kCompared = 8;
  // What is no file, or cannot be seen, write_file refuses.
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored) && fs::file_size(path) > 0) {
    std::string begin(std::min(kCompared, text.size()), '\0');
    const Descriptor file(path, O_RDONLY);
    const ssize_t read = ::pread(file.get(), begin.data(), begin.size(), 0);
    require(read == std::ssize(begin) && text.starts_with(begin),
            "{}: is there already, and is something else than what would be written; name another "
            "file",
            path.string());
  }
  write_file(path, text);
}

int write_all(int descriptor, const void* data, uint64_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(descriptor, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    p += n;
    bytes -= static_cast<uint64_t>(n);
  }
  return 0;
}

std::string write_error(int error) {
  std::string text = std::strerror(error);
  if (error == ENOSPC || error == EDQUOT) text += "; free some space, or choose another folder";
  if (error == EFBIG) text += "; raise the limit on the size of files (ulimit -f)";
  return text;
}

// Where a file is written that goes by this name: of a link, what it links to. Throws where that is
// there and no file.
fs::path place_of(const fs::path& path) {
  struct stat there = {};
  if (::stat(path.c_str(), &there) != 0) return path;
  require(S_ISREG(there.st_mode), "{}: is {}; name a file", path.string(), kind_of(there.st_mode));
  return fs::is_symlink(path) ? fs::canonical(path) : path;
}

AtomicWriter::AtomicWriter(const fs::path& path)
    : path_(place_of(path)),
      aside_(with_suffix(path, ".new")),
      descriptor_(open_and_lock(aside_, path_)) {
  struct stat left = {};  // by a process that was killed
  const bool has_bytes = ::fstat(descriptor_, &left) == 0 && left.st_size > 0;
  if (has_bytes && ::ftruncate(descriptor_, 0) != 0) {
    const int error = errno;
    ::close(descriptor_);
    fail_write(error);
  }
}

AtomicWriter::~AtomicWriter() {
  if (!finished_) ::unlink(aside_.c_str());
  ::close(descriptor_);
}

void AtomicWriter::write(const void* data, uint64_t bytes) {
  if (const int error = write_all(descriptor_, data, bytes); error != 0) fail_write(error);
}

void AtomicWriter::finish() {
  if (::fsync(descriptor_) != 0) fail_write(errno);
  // The lock, which closing gives back, is held until the file has its name.
  if (::rename(aside_.c_str(), path_.c_str()) != 0) fail_write(errno);
  finished_ = true;
  flush(parent_of(path_));
}

void AtomicWriter::fail_write(int error) const {
  fail("{}: cannot write: {}", path_.string(), write_error(error));
}

FolderWriter::FolderWriter(const fs::path& path) : path_(path) {
  recover_folder(path_);
  make_folder(filling(path_));
}

FolderWriter::~FolderWriter() {
  std::error_code ignored;
  if (!finished_) fs::remove_all(filling(path_), ignored);
}

fs::path FolderWriter::filling(const fs::path& path) {
  return with_suffix(path, ".part");
}

// A folder cannot be renamed over another: the old one moves aside first. Killed between the two
// renames, recover_folder finds a complete `.new` and no `path`, and finishes.
void FolderWriter::finish() {
  const fs::path complete = with_suffix(path_, ".new");
  const fs::path old = with_suffix(path_, ".old");
  for (const auto& entry : fs::directory_iterator(filling(path_))) flush(entry.path());
  flush(filling(path_));
  rename_path(filling(path_), complete);
  finished_ = true;
  if (fs::exists(path_)) rename_path(path_, old);
  rename_path(complete, path_);
  flush(parent_of(path_));
  fs::remove_all(old);
}

void write_folder(const fs::path& path, const std::function<void(const fs::path&)>& write) {
  FolderWriter writer(path);
  write(FolderWriter::filling(path));
  writer.finish();
}

void recover_folder(const fs::path& path) {
  const fs::path complete = with_suffix(path, ".new");
  std::error_code ignored;
  fs::remove_all(FolderWriter::filling(path), ignored);
  if (fs::exists(complete)) {
    fs::remove_all(with_suffix(path, ".old"), ignored);
    if (fs::exists(path)) rename_path(path, with_suffix(path, ".old"));
    rename_path(complete, path);
  }
  fs::remove_all(with_suffix(path, ".old"), ignored);
}

namespace {

void require_no_file_in(const fs::path& path) {
  std::error_code ignored;
  const fs::path there = existing_part(path);
  if (!fs::exists(there, ignored) || fs::is_directory(there, ignored)) return;
  const bool is_all = there == fs::absolute(path).lexically_normal();
  fail("{}: cannot make this folder: {} is a file; name another folder", path.string(),
       is_all ? "it" : there.string());
}

}  // namespace

void make_folder(const fs::path& path) {
  require_no_file_in(path);
  std::error_code code;
  fs::create_directories(path, code);
  require(!code && fs::is_directory(path), "{}: cannot make this folder: {}", path.string(),
          code ? code.message() : "something else has that name");
}

fs::path existing_part(const fs::path& path) {
  std::error_code ignored;
  fs::path there = fs::absolute(path).lexically_normal();
  while (!fs::exists(there, ignored) && there.has_relative_path()) there = there.parent_path();
  return there;
}

// Only trying tells: permissions, file systems and containers all have a say.
void require_writable_folder(const fs::path& path) {
  require_no_file_in(path);
  std::string trial = (existing_part(path) / ".attnres-XXXXXX").string();
  if (::mkdtemp(trial.data()) == nullptr) {
    fail("{}: cannot make this folder: {}", path.string(), last_error());
  }
  ::rmdir(trial.c_str());
}

FolderLock::FolderLock(const fs::path& folder)
    : descriptor_(open_and_lock(folder / ".lock", folder)) {}

FolderLock::~FolderLock() {
  ::close(descriptor_);
}

PathLock::PathLock(const fs::path& path)
    : file_(with_suffix(path, ".lock")), descriptor_(open_and_lock(file_, path)) {}

PathLock::~PathLock() {
  ::unlink(file_.c_str());
  ::close(descriptor_);
}

}  // namespace attnres
