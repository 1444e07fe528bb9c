// Reading event files back.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "attnres/support/file.h"
#include "attnres/train/run_folder/event_file.h"

namespace attnres::testing {

// The messages of a file of records, whose checks have to be right.
inline std::vector<std::string> event_records(const std::filesystem::path& path) {
  const std::string file = read_file(path);
  std::vector<std::string> messages;
  const auto check_at = [&](size_t place, const std::string& of) {
    uint32_t stored = 0;
    std::memcpy(&stored, file.data() + place, sizeof(stored));
    EXPECT_EQ(std::rotl(stored - 0xa282ead8, 15), crc32c(of)) << "at byte " << place;
  };
  size_t place = 0;
  while (place + 12 <= file.size()) {
    uint64_t length = 0;
    std::memcpy(&length, file.data() + place, sizeof(length));
    check_at(place + 8, file.substr(place, 8));
    messages.push_back(file.substr(place + 12, length));
    check_at(place + 12 + length, messages.back());
    place += 16 + length;
  }
  EXPECT_EQ(place, file.size());
  return messages;
}

}  // namespace attnres::testing
