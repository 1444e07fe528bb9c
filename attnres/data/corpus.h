// The text that models are trained on: files, what is held out, and streams of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "attnres/text/passage.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

struct Document {
  std::string path;  // for messages
  std::string text;
};

struct Corpus {
  std::vector<Document> documents;  // none is empty
  // Identity of the texts and their order; independent of where the files lie.
  uint64_t hash = 0;
  int64_t bytes = 0;
  int64_t binary = 0, duplicates = 0, held_out = 0;  // files that were left out

  std::string description() const;  // "1093 files, 11.8 MiB (2 binary files, 1 duplicate skipped)"
};

// The folder's files that are not hidden, in the order of their relative paths. Throws Error where
// a folder cannot be read.
std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder);

// Throws Error where a file is no text by its name, or by how it begins.
void require_text_file(const std::filesystem::path& file);

// Reads files and folders, in the order given; a folder recursively, in the order of its relative
// paths, without hidden files. Empty files are left out, and files of a folder that are no text
// (not_text.h) are taken for binary and left out.
// Throws Error on a path that does not exist or cannot be read, on what is no plain text by its
// name (JSON lines, compressed files, weights) or is the folder of tokens, a run, a study or a
// model, on a file named itself that is no text by what it holds, and when no text remains.
Corpus read_corpus(const std::vector<std::filesystem::path>& paths);

// The corpus with the first of equal texts only, found by their hashes, and without the texts of
// `held_out`: what is held out must not be trained on under another name. Throws Error when no text
// remains.
Corpus without_duplicates(Corpus corpus, const Corpus& held_out = {});

// Text that every machine with a C++ compiler has: the C and C++ headers of the newest GCC under
// `prefix` (about 12 MB). Throws Error when there are none.
std::vector<std::filesystem::path> default_corpus_paths(
    const std::filesystem::path& prefix = "/usr");

std::vector<Passage> passages_of(const Corpus& corpus);  // every document, whole

// Each document is on one side, but for one that may be cut: its end is then held out.
struct DocumentSplit {
  std::vector<Passage> train, validation;
};

// Holds out `fraction` of the bytes (above 0, at most 0.5), but at least `least_bytes` (1 or more).
// The hash of a document's text draws it a number in [0, 1), and those with the lowest are held
// out:
//   the ones that draw less than `fraction`, as long as they make up between half and one and a
//   half times what is to be held out; then documents that are added later move no other; otherwise
//   whole ones until the next is too large, and of that one the end, cut between two UTF-8
//   characters. A single document gives its end.
// Bytes stand for tokens, which are not known before a tokenizer is trained on the other side.
// Expects a corpus without duplicates. Throws Error when the text is shorter than 2 * least_bytes.
DocumentSplit split_by_size(const Corpus& corpus, double fraction, int64_t least_bytes);

// The rule of runs whose run.json records none: 5 % of the documents, however long they are, by the
// same draws, with at least one on each side. A single document gives its last 5 %.
// Throws Error when the text is too short for two parts.
DocumentSplit split_by_file(const Corpus& corpus);

struct TokenStream {
  std::vector<int32_t> tokens;  // every passage, each followed by the end of document
  std::vector<int64_t> ends;    // after which tokens passages end
  int64_t bytes = 0;            // of text
};

// All threads take passages in turn. Throws Error naming the file, the first one, where the
// tokenizer cannot take its text.
TokenStream tokenize(const std::vector<Passage>& passages, const Tokenizer& tokenizer);

struct Split {
  TokenStream train, validation;
};
Split tokenize(const DocumentSplit& documents, const Tokenizer& tokenizer);

}  // namespace attnres
