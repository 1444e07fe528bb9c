#include "attnres/formats/gguf_split.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "attnres/formats/gguf_reader.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSplitNumber = "split.no";
constexpr const char* kSplitCount = "split.count";
constexpr const char* kSplitTensors = "split.tensors.count";
constexpr int64_t kMostParts = UINT16_MAX;
constexpr int64_t kMostTensors = INT32_MAX;

// Of any integer type; programs write several.
int64_t split_number(const GgufFile& file, const char* key, int64_t most) {
  const GgufValue* value = file.find(key);
  if (value == nullptr) return 0;
  const auto number = std::visit(
      [&](const auto& held) -> std::optional<int64_t> {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
          if (std::cmp_greater_equal(held, 0) && std::cmp_less_equal(held, most)) {
            return static_cast<int64_t>(held);
          }
        }
        return std::nullopt;
      },
      *value);
  require(number.has_value(), "{}: {}: expected a whole number, 0 to {}; the file is damaged",
          file.path(), key, most);
  return *number;
}

std::string end_of_name(int64_t number, int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
}

// "part 2 of 3 of a split GGUF file".
std::string which_part(const GgufSplit& split) {
  return fmt::format("part {} of {} of a split GGUF file", split.number + 1, split.count);
}

// The path without the end that a part's name has; none where it has another.
std::optional<std::string> stem_of_parts(const fs::path& file, const GgufSplit& split) {
  const std::string path = file.string(), end = end_of_name(split.number, split.count);
  if (!path.ends_with(end) || file.filename() == end) return std::nullopt;
  return path.substr(0, path.size() - end.size());
}

// Those of the names that are missing, of three and more in a row the first and the last.
std::string listed(const std::vector<std::string>& names, const std::vector<bool>& is_missing) {
  std::vector<std::string> shown;
  for (size_t i = 0; i < names.size(); ++i) {
    if (!is_missing[i]) continue;
    size_t last = i;
    while (last + 1 < names.size() && is_missing[last + 1]) ++last;
    if (last < i + 2) {
      shown.push_back(one_line(names[i]));
      continue;
    }
    shown.push_back(fmt::format("{} to {}", one_line(names[i]), one_line(names[last])));
    i = last;
  }
  return fmt::format("{}", fmt::join(shown, ", "));
}

// Looked at as a whole, since a few bytes may ask for tens of thousands of files.
std::set<std::string> names_beside(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    names.insert(entry.path().filename().string());
  }
  require(!error, "{}: cannot be listed: {}", folder.string(), error.message());
  return names;
}

// NAME-00002-of-00003 without the number: what all parts of a model have in common; the name itself
// of another file.
std::string common_name(const std::string& name) {
  constexpr std::string_view kForm = "-NNNNN-of-NNNNN.gguf";  // N: a digit
  if (name.size() <= kForm.size()) return name;
  const size_t at = name.size() - kForm.size();
  for (size_t i = 0; i < kForm.size(); ++i) {
    const char c = name[at + i];
    if (kForm[i] == 'N' ? c < '0' || c > '9' : c != kForm[i]) return name;
  }
  return name.substr(0, at) + name.substr(at + std::string_view("-NNNNN").size());
}

}  // namespace

GgufSplit read_gguf_split(const GgufFile& file) {
  GgufSplit split = {.number = split_number(file, kSplitNumber, kMostParts),
                     .count = split_number(file, kSplitCount, kMostParts),
                     .tensors = split_number(file, kSplitTensors, kMostTensors)};
  if (split.is_whole()) return split;
  require(split.number < split.count, "{}: says that it is part {} of {}; the file is damaged",
          file.path(), split.number + 1, split.count);
  require(file.find(kSplitTensors) != nullptr,
          "{}: is {}, but {} is missing; split the model again", file.path(), which_part(split),
          kSplitTensors);
  return split;
}

std::vector<fs::path> gguf_part_files(const fs::path& file, const GgufSplit& split) {
  auto stem = stem_of_parts(file, split);
  std::error_code none;
  if (!stem) stem = stem_of_parts(fs::weakly_canonical(file, none), split);  // a link to it
  require(stem.has_value(),
          "{}: is {}, but is not called NAME{}, by which the others are found; give the parts the "
          "names back that they had",
          file.string(), which_part(split), end_of_name(split.number, split.count));
  const fs::path path(*stem), folder = path.has_parent_path() ? path.parent_path() : ".";
  const std::set<std::string> beside = names_beside(folder);
  std::vector<std::string> names;
  std::vector<bool> is_missing;
  for (int64_t number = 0; number < split.count; ++number) {
    names.push_back(path.filename().string() + end_of_name(number, split.count));
    is_missing.push_back(!beside.contains(names.back()));
  }
  const auto missing = std::count(is_missing.begin(), is_missing.end(), true);
  require(missing == 0, "{}: is {}, of which {} missing in {}: {}; put all parts into one folder",
          file.string(), which_part(split),
          missing == 1 ? "one is" : fmt::format("{} are", missing), folder.string(),
          missing == 0 ? "" : listed(names, is_missing));
  std::vector<fs::path> files;
  for (const std::string& name : names) files.push_back(path.parent_path() / name);
  return files;
}

void require_gguf_part(const GgufFile& file, int64_t number, const GgufSplit& split) {
  const GgufSplit other = read_gguf_split(file);
  require(!other.is_whole(), "{}: is called part {} of {} of a split GGUF file, but is a whole one",
          file.path(), number + 1, split.count);
  require(other.number == number && other.count == split.count,
          "{}: says that it is part {} of {}, but is called part {} of {}; put the parts of one "
          "split together, under the names that they had",
          file.path(), other.number + 1, other.count, number + 1, split.count);
  require(other.tensors == split.tensors,
          "{}: is of a split with {} tensors, another part of one with {}; put the parts of one "
          "split together",
          file.path(), other.tensors, split.tensors);
}

std::optional<fs::path> gguf_in_folder(const fs::path& folder) {
  std::map<std::string, fs::path> models;  // by what their parts have in common
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".gguf") || name.starts_with("mmproj") || entry.is_directory(none))
      continue;
    fs::path& model = models[common_name(name)];
    if (model.empty() || name < model.filename().string()) model = entry.path();
  }
  if (models.empty()) return std::nullopt;
  if (models.size() == 1) return models.begin()->second;
  constexpr size_t kShown = 8;
  std::vector<std::string> names;
  for (const auto& [common, file] : models) {
    if (names.size() < kShown) names.push_back(one_line(file.filename().string()));
  }
  fail("{}: holds {} GGUF models: {}{}; name one of these files", folder.string(), models.size(),
       fmt::join(names, ", "), models.size() > kShown ? ", ..." : "");
}

}  // namespace attnres
