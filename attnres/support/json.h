// JSON in and out. Every file and text of others goes through parse_json, so that what it refuses
// is refused everywhere, with errors that name the file and the place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attnres {

// Keys keep the order in which they were written.
using Json = nlohmann::ordered_json;

// What an object says whose keys are free and whose values are numbers, in its order.
using NamedNumbers = std::vector<std::pair<std::string, double>>;

// Lists and objects in each other, at most: copies and printing recurse.
inline constexpr size_t kDeepestJson = 100;

// A number, or one of the words that a key takes in its place; JSON of it is either.
struct NumberOrWord {
  NumberOrWord(double number) : number(number) {}

  double number;
  std::string word = {};  // empty where it is the number

  bool operator==(const NumberOrWord&) const = default;
};
void to_json(Json& json, const NumberOrWord& value);

// Throws Error naming `what` and the line and column of the first mistake or of a number too large
// for a double, or the path of an object that has a key twice or is nested deeper than
// kDeepestJson.
Json parse_json(std::string_view text, const std::string& what);

// Makes it an empty list or object, or leaves it as it is. Json's own destructor asks for as much
// memory as the largest list takes, and ends the process where there is none; after this it asks
// for none. For values of others' making, nested no deeper than kDeepestJson.
void take_apart(Json* value) noexcept;

// parse_json of a file's text.
Json read_json(const std::filesystem::path& path);

// A whole number; nothing of anything else, and beyond 64 bits.
std::optional<int64_t> whole_number(const Json& value);
// What to expect in place of a value that whole_number does not take: "a whole number", with its
// limits where the value is beyond them.
const char* expected_whole_number(const Json& value);

// The value on one line, with U+FFFD where a text is not UTF-8.
std::string one_line_of(const Json& json);

// The value in a message: on one line, and cut where it is long.
std::string shown(const Json& value);

// What two JSON objects disagree about, as "key: a -> b", keys with their path.
std::vector<std::string> differences(const Json& before, const Json& after,
                                     const std::string& path = "");

}  // namespace attnres
