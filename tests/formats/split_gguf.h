// GGUF files in parts, as llama-gguf-split writes them (ggml-org/llama.cpp, tools/gguf-split).
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "attnres/formats/gguf.h"
#include "attnres/formats/gguf_reader.h"

namespace attnres::testing {

// What the keys of a part say.
struct SplitKeys {
  uint16_t number = 0, count = 1;
  int32_t tensors = 0;
};

inline GgufMetadata split_metadata(const SplitKeys& keys, GgufMetadata metadata = {}) {
  metadata.emplace_back("split.no", keys.number);
  metadata.emplace_back("split.count", keys.count);
  metadata.emplace_back("split.tensors.count", keys.tensors);
  return metadata;
}

inline std::filesystem::path part_name(const std::filesystem::path& stem, size_t number,
                                       size_t count) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", stem.string(), number + 1, count);
}

// Of a file whose tensors are f32, with so many of them in a part; `first_is_empty` as with
// --no-tensor-first-split. Returns the parts' files.
inline std::vector<std::filesystem::path> split_gguf(const std::filesystem::path& whole,
                                                     const std::filesystem::path& stem,
                                                     size_t tensors_a_part,
                                                     bool first_is_empty = false) {
  const GgufFile file(whole);
  std::vector<std::vector<GgufTensor>> parts(first_is_empty ? 2 : 1);
  for (const std::string& name : file.names()) {
    if (parts.back().size() == tensors_a_part) parts.emplace_back();
    const at::Tensor numbers = file.numbers(name);
    parts.back().push_back(
        {name, file.info(name).shape, GgufType::f32, [numbers] { return numbers; }});
  }
  std::vector<std::filesystem::path> files;
  for (size_t i = 0; i < parts.size(); ++i) {
    const SplitKeys keys = {static_cast<uint16_t>(i), static_cast<uint16_t>(parts.size()),
                            static_cast<int32_t>(file.names().size())};
    files.push_back(part_name(stem, i, parts.size()));
    write_gguf(files.back(), split_metadata(keys, i == 0 ? file.metadata() : GgufMetadata()),
               parts[i]);
  }
  return files;
}

}  // namespace attnres::testing
