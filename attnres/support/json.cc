#include "attnres/support/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres {
namespace {

std::string line_and_column(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t newline = before.rfind('\n');
  const size_t column = before.size() - (newline == std::string_view::npos ? 0 : newline + 1);
  return fmt::format("line {}, column {}", line, std::max<size_t>(column, 1));
}

}  // namespace

Json parse_json(std::string_view text, const std::string& what) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& e) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ...": keep
    // the part after the position.
    std::string reason = e.what();
    const size_t colon = reason.find("syntax error");
    if (colon != std::string::npos) reason = reason.substr(colon);
    fail("{}: not valid JSON at {}: {}", what, line_and_column(text, e.byte), reason);
  }
}

Json read_json(const std::filesystem::path& path) {
  return parse_json(read_file(path), path.string());
}

}  // namespace attnres
