// JSON in and out, with errors that name the file, line and column.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace attnres {

// Keys keep the order in which they were written.
using Json = nlohmann::ordered_json;

// Throws Error naming `what`, the line and the column of the first mistake.
Json parse_json(std::string_view text, const std::string& what);

// parse_json of a file's text.
Json read_json(const std::filesystem::path& path);

}  // namespace attnres
