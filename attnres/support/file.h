// Files: whole reads, writes that are never half done, and locks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace attnres {

// Whether something has this name. Throws Error where that cannot be seen, as in a folder that may
// not be read.
bool path_exists(const std::filesystem::path& path);

// A file that is open for reading. Throws Error saying what is there instead: nothing, a folder, or
// a pipe or device, which may never begin or end.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int descriptor() const { return descriptor_; }
  uint64_t bytes() const { return bytes_; }

 private:
  int descriptor_;
  uint64_t bytes_ = 0;
};

// The whole file. Throws as InputFile, and when it cannot be read.
std::string read_file(const std::filesystem::path& path);

// Writes all bytes, in as many pieces as it takes. Returns 0, or the errno of what stopped it.
int write_all(int descriptor, const void* data, uint64_t bytes);
// What an errno of writing means, and what to do about it.
std::string write_error(int error);

// Writes aside, flushes to the disk, then renames: the file has the old text or the new, never a
// part. Throws Error (and removes what it wrote) when the disk is full, the folder is read-only,
// another process is writing the file, or a device, a pipe or a folder has its name. Of a link,
// what it links to is written.
void write_file(const std::filesystem::path& path, std::string_view text);

// The same over what an earlier call wrote there: throws Error where what is there does not begin
// as `text` does, so that a file of another kind is never lost.
void rewrite_file(const std::filesystem::path& path, std::string_view text);

// A file written piece by piece in the same way: finish() makes it stand, without it nothing
// remains.
class AtomicWriter {
 public:
  explicit AtomicWriter(const std::filesystem::path& path);
  ~AtomicWriter();
  AtomicWriter(const AtomicWriter&) = delete;
  AtomicWriter& operator=(const AtomicWriter&) = delete;

  void write(const void* data, uint64_t bytes);
  void finish();

 private:
  [[noreturn]] void fail_write(int error) const;

  std::filesystem::path path_, aside_;
  int descriptor_;
  bool finished_ = false;
};

// A folder written the same way: `write` fills a fresh folder beside `path`, whose files are then
// flushed; the folder is renamed to `path`, replacing what was there. If `write` throws, or the
// process dies at any moment, the old folder stands (see recover_folder). The path must end in a
// name, not in a slash; the same holds for files.
void write_folder(const std::filesystem::path& path,
                  const std::function<void(const std::filesystem::path&)>& write);

// Finishes or undoes a write_folder that was killed. Call before reading `path`.
void recover_folder(const std::filesystem::path& path);

// Creates the folder and its parents. Throws Error when it may not.
void make_folder(const std::filesystem::path& path);

// The longest beginning of the path that is there already.
std::filesystem::path existing_part(const std::filesystem::path& path);

// Throws Error unless the folder can be made, or is there and can be written in. Leaves nothing.
void require_writable_folder(const std::filesystem::path& path);

// Holds an exclusive lock on `folder` while it lives. Throws Error when another process holds it.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_;
};

// Holds the exclusive right to make `path` while it lives, by a file `path`.lock that it removes.
// Throws Error when another process holds it, or its folder is not there.
class PathLock {
 public:
  explicit PathLock(const std::filesystem::path& path);
  ~PathLock();
  PathLock(const PathLock&) = delete;
  PathLock& operator=(const PathLock&) = delete;

 private:
  std::filesystem::path file_;
  int descriptor_;
};

}  // namespace attnres
