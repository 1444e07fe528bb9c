// A file as memory, whose pages are read when they are looked at.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace attnres {

class MappedFile {
 public:
  // Throws as InputFile, and where the file cannot be mapped.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view whole() const { return {data_, bytes_}; }
  // The pages that were read need not stay in memory; whoever looks again reads them again.
  void release_pages() const;

 private:
  const char* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace attnres
