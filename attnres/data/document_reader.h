// Documents of files of any size, one after another: of a plain file its text, of JSON lines a
// field of each line, or a conversation; compressed or not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "attnres/data/byte_stream.h"

namespace attnres {

// A file to read, and what it was when it was first seen.
struct DocumentFile {
  std::string path;
  int64_t bytes = 0;
  int64_t changed = 0;  // when it was, in the file system's nanoseconds

  bool operator==(const DocumentFile&) const = default;
};
// Files, folders (as read_corpus) and patterns with * ? [ ], in the order given. Throws Error on a
// path that does not exist, and on a pattern that no file has.
std::vector<DocumentFile> find_document_files(const std::vector<std::filesystem::path>& paths);
// As it is now; nothing where it is gone.
std::optional<DocumentFile> look_at(const std::filesystem::path& path);

// Whether a name says that a file has a JSON value on each line: .jsonl, .ndjson, .json.gz and so
// on.
bool has_json_lines(const std::filesystem::path& path);

// What was read, before anything is understood of it.
struct RawDocument {
  std::string text = {};  // a line of JSON, or a piece of a plain file
  int64_t number = 0;     // of the line or piece in the file, from 1
  bool is_line = false;
  bool whole = true;  // of a line: not too long to be kept
  // Whether the document begins and ends with this piece.
  bool begins = true, ends = true;
};

class DocumentReader {
 public:
  // Lines that are longer than kLongestLine are cut, plain text comes in pieces of about
  // `piece_bytes`.
  static constexpr size_t kLongestLine = size_t{1} << 28;
  static constexpr size_t kPieceBytes = size_t{4} << 20;
  explicit DocumentReader(const std::filesystem::path& path, size_t piece_bytes = kPieceBytes);

  // Empty lines are left out. False at the end.
  bool next(RawDocument& document);
  // Bytes of the file that were read so far.
  int64_t consumed() const { return stream_.consumed(); }

 private:
  BufferedText stream_;
  size_t piece_bytes_;
  bool is_json_;
  int64_t number_ = 0;
  std::optional<std::string> ahead_;  // of plain text, the piece after the one given
};

}  // namespace attnres
