// The text that models are trained on: files, what is held out, and streams of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

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
  std::string description;  // "1093 files, 11.8 MiB (2 binary files skipped)"
};

// Reads files and folders, in the order given; a folder recursively, in the order of its relative
// paths, without hidden files. Empty files are left out, and files of a folder that hold a zero
// byte are taken for binary and left out; a file named itself is always read.
// Throws Error on a path that does not exist or cannot be read, and when no text remains.
Corpus read_corpus(const std::vector<std::filesystem::path>& paths);

// Text that every machine with a C++ compiler has: the C and C++ headers of the newest GCC under
// `prefix` (about 12 MB). Throws Error when there are none.
std::vector<std::filesystem::path> default_corpus_paths(
    const std::filesystem::path& prefix = "/usr");

// A document, or a part of one: views into a Corpus, which must outlive it.
struct Passage {
  std::string_view path;
  std::string_view text;
  size_t offset = 0;  // of the text in its document, in bytes
};

struct DocumentSplit {
  std::vector<Passage> train, validation;
};

// Holds out about 5 %. Several documents: each goes by the hash of its text, so that equal texts
// fall on the same side and adding documents moves no other, with at least one on each side. A
// single document: its last 5 %, cut between two UTF-8 characters.
// Throws Error when the text is too short for two parts.
DocumentSplit split_documents(const Corpus& corpus);

struct TokenStream {
  std::vector<int32_t> tokens;  // every passage, each followed by the end of document
  int64_t bytes = 0;            // of text
};

// Throws Error naming the file where the tokenizer cannot take its text.
TokenStream tokenize(const std::vector<Passage>& passages, const Tokenizer& tokenizer);

struct Split {
  TokenStream train, validation;
};
Split tokenize(const DocumentSplit& documents, const Tokenizer& tokenizer);

// Cross-entropy of a stream in bits per byte of text, comparable between tokenizers:
// nats_per_token / ln 2 * tokens / bytes.
double bits_per_byte(double nats_per_token, const TokenStream& stream);

}  // namespace attnres
