#include "app/token_ids.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

int32_t parse_id(const std::string& word) {
  int32_t id = 0;
  const char* end = word.data() + word.size();
  const auto [stop, code] = std::from_chars(word.data(), end, id);
  require(code == std::errc() && stop == end,
          "'{}' is not a token id; expected whole numbers such as 5,17,3", one_line(word));
  return id;
}

}  // namespace

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  const bool has_commas = text.find(',') != std::string::npos;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    std::istringstream words(text.substr(begin, comma - begin));
    const size_t before = ids.size();
    for (std::string word; words >> word;) ids.push_back(parse_id(word));
    require(!has_commas || ids.size() > before,
            "'{}': a token id is missing {} a comma; expected whole numbers such as 5,17,3",
            one_line(text), begin == 0 ? "before" : "after");
    begin = comma + 1;
  }
  return ids;
}

}  // namespace attnres
