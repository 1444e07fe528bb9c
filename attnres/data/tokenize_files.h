// Text of any size to a folder of tokens (token_folder.h), on all threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/chat/chat_template.h"
#include "attnres/data/document_reader.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

struct TokenizeProgress {
  int64_t bytes = 0, of_bytes = 0;  // of the files, as they lie
  int64_t tokens = 0, documents = 0;
};

struct TokenizeJob {
  std::vector<DocumentFile> files = {};
  std::filesystem::path out = {};
  std::string field = "text";           // of JSON lines
  const ChatTemplate* chat = nullptr;   // what renders the field's conversations; null: a text
  bool strict = false;                  // end at the first document that cannot be read
  int64_t tokens_a_file = 100'000'000;  // about; how much a kill can cost
  // Sizes of a piece of plain text, and of all that a thread is given at once.
  size_t piece_bytes = DocumentReader::kPieceBytes;
  int64_t portion_bytes = int64_t{8} << 20;

  std::function<void(const TokenizeProgress&)> on_progress = {};
  std::function<void(std::string_view line)> on_message = {};
  std::function<bool()> should_stop = {};
};

struct TokenizeResult {
  int64_t tokens = 0, documents = 0, text_bytes = 0;
  int64_t duplicates = 0;     // documents whose text came before
  int64_t broken = 0;         // lines and pieces that could not be read
  int64_t binary = 0;         // files that are no text (not_text.h)
  bool was_finished = false;  // nothing was left to do
  bool stopped = false;       // before the end, and saved
};

// Writes the documents in the order of the files. What lies in `out` of the same job is gone on
// with, at most tokens_a_file of work before where it was killed; it becomes the same tokens. The
// first few broken documents are told, with file and line, and all counted, as one of them what
// follows in a file whose compressed bytes are damaged; a document that is not the first with its
// text is left out. Throws Error where `out` holds something else or the files
// have changed since, with `strict` on a broken document, and where no token came of it all; what
// was done until then is kept.
TokenizeResult tokenize_files(const TokenizeJob& job, const Tokenizer& tokenizer);

}  // namespace attnres
