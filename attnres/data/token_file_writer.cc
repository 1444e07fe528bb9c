#include "attnres/data/token_file_writer.h"

#include <xxhash.h>

#include "attnres/support/error.h"

namespace attnres {
namespace fs = std::filesystem;

struct TokenFileWriter::Hasher {
  Hasher() { XXH3_64bits_reset(state); }
  ~Hasher() { XXH3_freeState(state); }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  XXH3_state_t* state = XXH3_createState();
};

TokenFileWriter::TokenFileWriter(const fs::path& folder, size_t number, int width)
    : path_(folder / fmt::format("tokens-{:05}.bin", number)),
      width_(width),
      file_({.name = path_.filename().string()}),
      tokens_(path_),
      hasher_(std::make_unique<Hasher>()) {}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::add(std::span<const uint32_t> tokens, int64_t text_bytes,
                          bool ends_document) {
  const void* bytes = tokens.data();
  if (width_ == 2) {
    narrow_.assign(tokens.begin(), tokens.end());
    bytes = narrow_.data();
  }
  tokens_.write(bytes, tokens.size() * width_);
  XXH3_64bits_update(hasher_->state, bytes, tokens.size() * width_);
  file_.tokens += std::ssize(tokens);
  file_.text_bytes += text_bytes;
  if (ends_document) ends_.push_back(file_.tokens);
}

TokenFile TokenFileWriter::finish() {
  write_file(fs::path(path_).replace_extension(".ends"),
             {reinterpret_cast<const char*>(ends_.data()), ends_.size() * sizeof(uint64_t)});
  tokens_.finish();
  file_.documents = std::ssize(ends_);
  file_.hash = XXH3_64bits_digest(hasher_->state);
  return file_;
}

}  // namespace attnres
