#include "tests/fuzz/fuzz_inputs.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres::testing {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kBetween = "\n\x1e\n";

struct OwnFolder {
  OwnFolder() {
    std::string name = fs::temp_directory_path() / "attnres-fuzz-XXXXXX";
    require(::mkdtemp(name.data()) != nullptr, "{}: cannot be made; set TMPDIR", name);
    path = name;
  }
  ~OwnFolder() {
    std::error_code none;
    fs::remove_all(path, none);
  }

  fs::path path;
};

}  // namespace

std::string joined_inputs(const std::vector<std::string>& parts) {
  std::string input;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) input += kBetween;
    input += parts[i];
  }
  return input;
}

std::vector<std::string_view> parts_of(std::string_view input, size_t count) {
  std::vector<std::string_view> parts(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t end = i + 1 < count ? input.find(kBetween) : std::string_view::npos;
    parts[i] = input.substr(0, end);
    input = end == std::string_view::npos ? "" : input.substr(end + kBetween.size());
  }
  return parts;
}

const fs::path& fuzz_folder() {
  static const OwnFolder folder;
  return folder.path;
}

void clear_fuzz_folder() {
  for (const auto& entry : fs::directory_iterator(fuzz_folder())) fs::remove_all(entry);
}

fs::path put_file(const std::string& name, std::string_view bytes) {
  const fs::path path = fuzz_folder() / name;
  // A new file each time: an earlier one may still be mapped.
  fs::remove(path);
  if (!bytes.empty()) std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

void put_files(std::string_view input, const std::vector<std::string>& names) {
  clear_fuzz_folder();
  const auto parts = parts_of(input, names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    fs::create_directories((fuzz_folder() / names[i]).parent_path());
    put_file(names[i], parts[i]);
  }
}

std::string joined_files(const fs::path& folder, const std::vector<std::string>& names) {
  std::vector<std::string> parts;
  for (const std::string& name : names) {
    parts.push_back(path_exists(folder / name) ? read_file(folder / name) : "");
  }
  return joined_inputs(parts);
}

std::string repository_file(const std::string& path) {
  return read_file(fs::path(ATTNRES_SOURCE_DIR) / path);
}

std::vector<std::string> repository_files(const std::string& folder, const std::string& name_end) {
  const fs::path root = ATTNRES_SOURCE_DIR;
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
    const std::string path = fs::relative(entry.path(), root);
    if (entry.is_regular_file() && path.ends_with(name_end)) found.push_back(path);
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace attnres::testing
