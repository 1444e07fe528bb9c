// Whether a token folder still holds what was written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace attnres {

// Reads all of the folder, and tells what is not as its index says, a line each: files that are
// gone or have another length, bytes with another hash, ids outside the vocabulary, ends of
// documents where none end, a tokenizer that is another. on_progress hears of the bytes of tokens
// that were read. Throws Error where there is no index, or one that is damaged.
std::vector<std::string> verify_token_folder(
    const std::filesystem::path& folder,
    const std::function<void(int64_t done, int64_t total)>& on_progress = {});

}  // namespace attnres
