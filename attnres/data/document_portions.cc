#include "attnres/data/document_portions.h"

#include <utility>

#include "attnres/data/not_text.h"
#include "attnres/support/error.h"

namespace attnres {

DocumentPortion DocumentPortions::next(int64_t bytes) {
  DocumentPortion portion;
  try {
    read(bytes, portion);
  } catch (const Error&) {
    portion.error = std::current_exception();
  }
  if (file_ == files_.size()) portion.binary_after = std::exchange(binary_, 0);
  portion.file = file_;
  portion.bytes_of_file = reader_ != nullptr ? reader_->consumed() : 0;
  return portion;
}

void DocumentPortions::read(int64_t bytes, DocumentPortion& portion) {
  int64_t read = 0;
  while (read < bytes && file_ < files_.size()) {
    const DocumentFile& file = files_[file_];
    if (reader_ == nullptr) {
      reader_ = std::make_unique<DocumentReader>(file.path, piece_bytes_);
    }
    PlacedDocument document{.raw = {}, .file = file_, .whole_hash = {}};
    try {
      if (!read_document(file, document, portion)) continue;
    } catch (const DamagedFile&) {
      document = rest_of_damaged(file);
      const bool was_told = document.raw.number <= skip_;
      leave_file();
      if (was_told) continue;
    }
    read += std::ssize(document.raw.text) + static_cast<int64_t>(sizeof(PlacedDocument));
    document.binary_before = std::exchange(binary_, 0);
    portion.documents.push_back(std::move(document));
  }
}

bool DocumentPortions::read_document(const DocumentFile& file, PlacedDocument& document,
                                     DocumentPortion& portion) {
  const RawDocument& raw = document.raw;
  if (!reader_->next(document.raw)) {
    if (look_at(file.path) != file) {
      portion.messages.push_back(
          fmt::format("warning: {} has changed while it was read", file.path));
    }
    leave_file();
    return false;
  }
  if (raw.number > skip_) {
    if (!raw.is_line && raw.begins && find_not_text(raw.text)) {
      ++binary_;
      leave_file();
      return false;
    }
    if (raw.begins && !raw.ends) document.whole_hash = hash_file_text(file.path);
  }
  number_ = raw.number;
  return raw.number > skip_;
}

PlacedDocument DocumentPortions::rest_of_damaged(const DocumentFile& file) const {
  const bool is_line = has_json_lines(file.path);
  return {
      .raw = {.number = number_ + 1, .is_line = is_line, .begins = is_line || number_ == 0},
      .file = file_,
      .whole_hash = {},
      .problem = "its compressed bytes are damaged here, or end too early; what follows is lost"};
}

void DocumentPortions::leave_file() {
  reader_.reset();
  ++file_;
  skip_ = number_ = 0;
}

}  // namespace attnres
