#include "attnres/data/document_reader.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <utility>

#include "attnres/data/corpus.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

std::vector<fs::path> files_of_pattern(const fs::path& pattern) {
  glob_t found = {};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<fs::path> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  require(result == 0, "{}: no file has such a name", pattern.string());
  return files;
}

bool is_pattern(const fs::path& path) {
  return path.string().find_first_of("*?[") != std::string::npos;
}

}  // namespace

std::optional<DocumentFile> look_at(const fs::path& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return DocumentFile{
      .path = path.string(),
      .bytes = status.st_size,
      .changed = status.st_mtim.tv_sec * int64_t{1'000'000'000} + status.st_mtim.tv_nsec};
}

std::vector<DocumentFile> find_document_files(const std::vector<fs::path>& paths) {
  std::vector<DocumentFile> files;
  const auto add = [&](const fs::path& path) {
    const std::optional<DocumentFile> file = look_at(fs::absolute(path));
    require(file.has_value(), "{}: no such file", path.string());
    require(first_invalid_utf8(file->path) == file->path.size(),
            "{}: its name is not UTF-8, and cannot be recorded; rename it", path.string());
    files.push_back(*file);
  };
  const auto add_all = [&](const fs::path& path) {
    if (!fs::is_directory(path)) return add(path);
    for (const fs::path& file : files_below(path)) add(file);
  };
  for (const fs::path& path : paths) {
    if (path_exists(path)) {
      add_all(path);
    } else {
      require(is_pattern(path), "{}: no such file or folder to take text from", path.string());
      for (const fs::path& found : files_of_pattern(path)) add_all(found);
    }
  }
  require(!files.empty(), "{}: no files in it", paths.empty() ? "" : paths.front().string());
  return files;
}

bool has_json_lines(const fs::path& path) {
  fs::path name = path.filename();
  if (name.extension() == ".gz" || name.extension() == ".zst") name = name.stem();
  constexpr std::array kExtensions = {".jsonl", ".ndjson", ".json"};
  return std::find(kExtensions.begin(), kExtensions.end(), name.extension()) != kExtensions.end();
}

DocumentReader::DocumentReader(const fs::path& path, size_t piece_bytes)
    : stream_(path), piece_bytes_(piece_bytes), is_json_(has_json_lines(path)) {}

bool DocumentReader::next(RawDocument& document) {
  if (is_json_) {
    document = {.is_line = true};
    do {
      if (!stream_.read_line(document.text, kLongestLine, document.whole)) return false;
      document.number = ++number_;
    } while (document.text.find_first_not_of(" \t\r") == std::string::npos);
    return true;
  }
  std::string piece;
  if (number_ == 0 && stream_.read_piece(piece, piece_bytes_)) ahead_ = std::move(piece);
  if (!ahead_) return false;
  document = {.text = std::move(*ahead_), .number = ++number_, .begins = number_ == 1};
  ahead_.reset();
  if (stream_.read_piece(piece, piece_bytes_)) ahead_ = std::move(piece);
  document.ends = !ahead_.has_value();
  return true;
}

}  // namespace attnres
