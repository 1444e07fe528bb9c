#include "attnres/support/csv.h"

#include <nlohmann/json.hpp>

namespace attnres {
namespace {

std::string csv_cell(const Json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  const std::string text = value;
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted(1, '"');
  for (const char c : text) quoted.append(c == '"' ? 2 : 1, c);
  quoted += '"';
  return quoted;
}

}  // namespace

std::string csv_line(const std::vector<Json>& values) {
  std::string line;
  for (const Json& value : values) line += csv_cell(value) + ",";
  line.back() = '\n';
  return line;
}

}  // namespace attnres
