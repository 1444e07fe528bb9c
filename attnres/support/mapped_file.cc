#include "attnres/support/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const InputFile file(path);
  bytes_ = file.bytes();
  if (bytes_ == 0) return;
  void* map = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  require(map != MAP_FAILED, "{}: cannot map into memory: {}", path.string(), std::strerror(errno));
  data_ = static_cast<const char*>(map);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), bytes_);
}

void MappedFile::release_pages() const {
  if (data_ != nullptr) ::madvise(const_cast<char*>(data_), bytes_, MADV_DONTNEED);
}

}  // namespace attnres
