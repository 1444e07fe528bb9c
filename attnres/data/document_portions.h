// Files' documents in portions, each for all threads at once.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attnres/data/document_encoder.h"
#include "attnres/data/document_reader.h"

namespace attnres {

// Where reading goes on: after so many lines or pieces of a file.
struct DocumentPlace {
  size_t file = 0;
  int64_t number = 0;
  bool leaves_out = false;  // what is left of the document there
};

struct PlacedDocument {
  RawDocument raw;
  size_t file = 0;
  // The hash of a text in several pieces as a whole, with its first piece.
  std::optional<TextHash> whole_hash;
  int64_t binary_before = 0;  // files that were left out since the document before
  std::string problem = {};   // why nothing of it can be read
};

struct DocumentPortion {
  std::vector<PlacedDocument> documents;
  std::vector<std::string> messages;
  int64_t binary_after = 0;  // at the end of all files
  std::exception_ptr error;  // what ended reading after these documents
  // Where reading is then: in this file, after so many of its bytes as it lies.
  size_t file = 0;
  int64_t bytes_of_file = 0;
};

// Reads the files one after another, a portion at a time.
class DocumentPortions {
 public:
  // From a place on. The files must outlive it.
  DocumentPortions(const std::vector<DocumentFile>& files, size_t piece_bytes,
                   const DocumentPlace& place)
      : files_(files), piece_bytes_(piece_bytes), file_(place.file), skip_(place.number) {}

  // Empty at the end.
  DocumentPortion next(int64_t bytes);

 private:
  void read(int64_t bytes, DocumentPortion& portion);
  // False where there is nothing to take: at the end of the file, before where reading goes on, and
  // of a binary file.
  bool read_document(const DocumentFile& file, PlacedDocument& document, DocumentPortion& portion);
  // As one document that is broken.
  PlacedDocument rest_of_damaged(const DocumentFile& file) const;
  void leave_file();

  const std::vector<DocumentFile>& files_;
  size_t piece_bytes_;
  size_t file_;
  int64_t skip_;
  int64_t number_ = 0;  // of the document that was read last
  int64_t binary_ = 0;  // files that were left out since the last document
  std::unique_ptr<DocumentReader> reader_;
};

}  // namespace attnres
