// A reader of GGUF files for tests, written from the format's description and nothing else.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"

namespace attnres::testing {

struct ParsedTensor {
  std::string name;
  std::vector<int64_t> sizes;  // fastest first
  uint32_t type = 0;           // ggml's number
  uint64_t offset = 0;
  std::string_view data;  // in ParsedGguf::bytes

  int64_t numel() const {
    int64_t product = 1;
    for (const int64_t size : sizes) product *= size;
    return product;
  }

  // The i-th number, fastest first.
  double at(int64_t i) const {
    if (type == 0) return load<float>(4 * i);
    if (type == 1) return half(load<uint16_t>(2 * i));
    if (type == 30) {
      const uint32_t bits = uint32_t{load<uint16_t>(2 * i)} << 16;
      float value = 0;
      std::memcpy(&value, &bits, sizeof(value));
      return value;
    }
    if (type == 2) {  // q4_0
      const int64_t block = i / 32 * 18, j = i % 32;
      const int pair = load<uint8_t>(block + 2 + j % 16);
      return half(load<uint16_t>(block)) * ((j < 16 ? pair % 16 : pair / 16) - 8);
    }
    const int64_t block = i / 32 * 34;  // of q8_0
    return half(load<uint16_t>(block)) * load<int8_t>(block + 2 + i % 32);
  }

 private:
  template <class T>
  T load(int64_t at) const {
    T value;
    std::memcpy(&value, data.substr(at, sizeof(T)).data(), sizeof(T));
    return value;
  }

  static double half(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    return bits >> 15 ? -magnitude : magnitude;
  }
};

class ParsedGguf {
 public:
  // Throws Error where the file is not one.
  explicit ParsedGguf(const std::filesystem::path& path) : bytes_(read_file(path)) {
    require(take(4) == "GGUF" && number<uint32_t>() == 3, "not GGUF 3");
    const auto tensors = number<uint64_t>(), keys = number<uint64_t>();
    for (uint64_t i = 0; i < keys; ++i) {
      const std::string key = text();
      keys_.push_back(key);
      metadata_[key] = value(number<uint32_t>());
    }
    for (uint64_t i = 0; i < tensors; ++i) tensors_.push_back(info());
    const uint64_t start = (at_ + 31) / 32 * 32;
    for (ParsedTensor& tensor : tensors_) {
      require(tensor.offset % 32 == 0, "{} is not aligned", tensor.name);
      require(start + tensor.offset + stored_bytes(tensor) <= bytes_.size(), "truncated");
      tensor.data = std::string_view(bytes_).substr(start + tensor.offset, stored_bytes(tensor));
    }
    end_ = start;
    if (!tensors_.empty()) {
      end_ += tensors_.back().offset + (stored_bytes(tensors_.back()) + 31) / 32 * 32;
    }
  }
  ParsedGguf(const ParsedGguf&) = delete;
  ParsedGguf& operator=(const ParsedGguf&) = delete;

  const std::vector<std::string>& keys() const { return keys_; }
  const Json& at(const std::string& key) const {
    const auto found = metadata_.find(key);
    require(found != metadata_.end(), "no key {}", key);
    return found->second;
  }
  bool has(const std::string& key) const { return metadata_.contains(key); }
  const std::vector<ParsedTensor>& tensors() const { return tensors_; }
  const ParsedTensor& tensor(const std::string& name) const {
    for (const ParsedTensor& tensor : tensors_) {
      if (tensor.name == name) return tensor;
    }
    fail("no tensor {}", name);
  }
  // The file's size, and what it should be.
  uint64_t size() const { return bytes_.size(); }
  uint64_t expected_size() const { return end_; }

  static uint64_t stored_bytes(const ParsedTensor& tensor) {
    const auto count = static_cast<uint64_t>(tensor.numel());
    if (tensor.type == 0) return count * 4;
    if (tensor.type == 1 || tensor.type == 30) return count * 2;
    require((tensor.type == 8 || tensor.type == 2) && tensor.sizes[0] % 32 == 0,
            "unexpected type {}", tensor.type);
    return count / 32 * (tensor.type == 8 ? 34 : 18);
  }

 private:
  std::string_view take(uint64_t count) {
    require(count <= bytes_.size() - at_, "truncated");
    at_ += count;
    return std::string_view(bytes_).substr(at_ - count, count);
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string text() { return std::string(take(number<uint64_t>())); }
  Json value(uint32_t type) {
    switch (type) {
      case 4:
        return number<uint32_t>();
      case 5:
        return number<int32_t>();
      case 6:
        return number<float>();
      case 7:
        return number<uint8_t>() != 0;
      case 8:
        return text();
      case 9: {
        Json list = Json::array();
        const auto inner = number<uint32_t>();
        const auto count = number<uint64_t>();
        for (uint64_t i = 0; i < count; ++i) list.push_back(value(inner));
        return list;
      }
      default:
        fail("unexpected type {} of a key", type);
    }
  }
  ParsedTensor info() {
    ParsedTensor tensor;
    tensor.name = text();
    const auto dimensions = number<uint32_t>();
    for (uint32_t i = 0; i < dimensions; ++i) {
      tensor.sizes.push_back(static_cast<int64_t>(number<uint64_t>()));
    }
    tensor.type = number<uint32_t>();
    tensor.offset = number<uint64_t>();
    return tensor;
  }

  std::string bytes_;
  uint64_t at_ = 0, end_ = 0;
  std::vector<std::string> keys_;
  std::map<std::string, Json> metadata_;
  std::vector<ParsedTensor> tensors_;
};

}  // namespace attnres::testing
