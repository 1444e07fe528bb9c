// The keys of one architecture in a GGUF file, its name before each.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "attnres/formats/gguf.h"

namespace attnres {

class GgufKeys {
 public:
  explicit GgufKeys(std::string architecture) : architecture_(std::move(architecture)) {}

  void add(const std::string& key, int64_t value) { add_value(key, static_cast<uint32_t>(value)); }
  void add(const std::string& key, double value) { add_value(key, static_cast<float>(value)); }
  void add_value(const std::string& key, GgufValue value) {
    metadata_.emplace_back(architecture_ + "." + key, std::move(value));
  }

  const GgufMetadata& metadata() const { return metadata_; }

 private:
  std::string architecture_;
  GgufMetadata metadata_;
};

}  // namespace attnres
