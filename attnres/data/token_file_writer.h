// Writes the files of a token folder (token_folder.h), one after another.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "attnres/data/token_folder.h"
#include "attnres/support/file.h"

namespace attnres {

class TokenFileWriter {
 public:
  // File `number` of the folder; it is there when finish() returns, and never in part.
  TokenFileWriter(const std::filesystem::path& folder, size_t number, int width);
  ~TokenFileWriter();

  void add(std::span<const uint32_t> tokens, int64_t text_bytes, bool ends_document);
  const std::string& name() const { return file_.name; }
  int64_t tokens() const { return file_.tokens; }
  TokenFile finish();

 private:
  struct Hasher;

  std::filesystem::path path_;
  int width_;
  TokenFile file_;
  AtomicWriter tokens_;
  std::unique_ptr<Hasher> hasher_;
  std::vector<uint64_t> ends_;
  std::vector<uint16_t> narrow_;
};

}  // namespace attnres
