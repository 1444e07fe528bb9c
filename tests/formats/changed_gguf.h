// GGUF files with something else in them.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "attnres/formats/gguf.h"
#include "attnres/formats/gguf_reader.h"
#include "attnres/support/error.h"

namespace attnres::testing {

// A file as it was, but for its keys and tensors.
struct GgufContents {
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;

  GgufValue& key(const std::string& name) {
    for (auto& [key, value] : metadata) {
      if (key == name) return value;
    }
    return metadata.emplace_back(name, GgufValue()).second;
  }
  void erase_key(const std::string& name) {
    std::erase_if(metadata, [&](const auto& entry) { return entry.first == name; });
  }
  GgufTensor& tensor(const std::string& name) {
    for (GgufTensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    fail("no tensor {}", name);
  }
};

inline std::filesystem::path changed_gguf(const std::filesystem::path& path,
                                          const std::function<void(GgufContents&)>& change) {
  const GgufFile file(path);
  GgufContents contents = {file.metadata(), {}};
  for (const std::string& name : file.names()) {
    const at::Tensor numbers = file.numbers(name);
    contents.tensors.push_back(
        {name, file.info(name).shape, GgufType::f32, [numbers] { return numbers; }});
  }
  change(contents);
  const std::filesystem::path to = path.parent_path() / "changed.gguf";
  write_gguf(to, contents.metadata, contents.tensors);
  return to;
}

}  // namespace attnres::testing
