#include "attnres/data/text_sample.h"

#include <algorithm>
#include <utility>

#include "attnres/data/document_encoder.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 16;

bool is_text(const std::string& text) {
  return text.find('\0') == std::string::npos && first_invalid_utf8(text) == text.size();
}

// A damaged file ends before the damage, of which tokenizing tells.
bool read_next(DocumentReader& reader, RawDocument& document) {
  try {
    return reader.next(document);
  } catch (const DamagedFile&) {
    return false;
  }
}

}  // namespace

std::vector<std::string> sample_text(const std::vector<DocumentFile>& files,
                                     const std::string& field, int64_t most_bytes) {
  const int64_t share = std::max<int64_t>(most_bytes / std::max<int64_t>(std::ssize(files), 1), 1);
  std::vector<std::string> sample;
  int64_t all = 0;
  for (const DocumentFile& file : files) {
    if (all >= most_bytes) break;
    DocumentReader reader(file.path, kPieceBytes);
    RawDocument document;
    for (int64_t read = 0; read < share && read_next(reader, document);) {
      read += std::ssize(document.text);
      std::string text;
      try {
        text = text_of(document, field);
      } catch (const Error&) {
        continue;
      }
      if (text.empty() || !is_text(text)) continue;
      all += std::ssize(text);
      sample.push_back(std::move(text));
    }
  }
  require(!sample.empty(), "no text to train a tokenizer on in {}; name files with text",
          counted(std::ssize(files), "file"));
  return sample;
}

}  // namespace attnres
