#include "attnres/data/token_bin.h"

#include <array>
#include <cstring>
#include <memory>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/mapped_file.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr int32_t kGpt2Magic = 20240520, kLlama3Magic = 20240801;
using Header = std::array<int32_t, 256>;

}  // namespace

bool is_token_bin(const fs::path& path) {
  return path.extension() == ".bin" && path_exists(path) && !fs::is_directory(path);
}

TrainingTokens open_token_bin(const fs::path& path) {
  const auto file = std::make_shared<const MappedFile>(path);
  std::string_view tokens = file->whole();
  int width = 2;
  Header header = {};
  if (tokens.size() >= sizeof header) std::memcpy(&header, tokens.data(), sizeof header);
  if (header[0] == kGpt2Magic || header[0] == kLlama3Magic) {
    width = header[0] == kGpt2Magic ? 2 : 4;
    tokens.remove_prefix(sizeof header);
    const int64_t there = std::ssize(tokens) / width;
    require(header[2] == there,
            "{}: its header counts {} tokens, but {} follow; the file is truncated, or another "
            "one",
            path.string(), header[2], there);
  }
  require(
      tokens.size() % width == 0,
      "{}: {} bytes are no whole number of tokens of {} bytes; nanoGPT's and llm.c's .bin files "
      "are read",
      path.string(), tokens.size(), width);
  return TrainingTokens({{.owner = file,
                          .tokens = tokens.data(),
                          .count = std::ssize(tokens) / width,
                          .width = width,
                          .name = path.string()}});
}

}  // namespace attnres
