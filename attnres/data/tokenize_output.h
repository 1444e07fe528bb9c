// The folder of tokens that tokenize_files writes: what is in it, and where reading goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "attnres/data/document_encoder.h"
#include "attnres/data/document_portions.h"
#include "attnres/data/token_file_writer.h"
#include "attnres/data/token_folder.h"
#include "attnres/data/tokenize_files.h"
#include "attnres/support/json.h"

namespace attnres {

class TokenizeOutput {
 public:
  // Begins the job's folder, or goes on with what lies there. The job must outlive it. Throws Error
  // as tokenize_files.
  TokenizeOutput(const TokenizeJob& job, const Tokenizer& tokenizer);

  const TokenIndex& index() const { return index_; }
  const DocumentPlace& place() const { return place_; }
  TokenizeResult& counts() { return counts_; }

  // Takes what came of a document, or of a piece of one, unless its text came before.
  void add(const PlacedDocument& document, const EncodedDocument& encoded);
  // Leaves out a document without text.
  void add_nothing(const PlacedDocument& document) { move_past(document); }
  // Leaves out a document that cannot be read; of a longer one that has begun only the piece.
  void add_broken(const PlacedDocument& document);

  // What was written so far stands; where writing has failed, what stood before.
  void close_file();
  void finish();

  TokenizeResult result() const;
  int64_t tokens() const { return index_.tokens() + (writer_ != nullptr ? writer_->tokens() : 0); }
  int64_t documents() const { return documents_; }

 private:
  struct HashOfText {
    size_t operator()(const TextHash& hash) const { return hash.low; }
  };

  void write(const EncodedDocument& encoded, bool ends_document);
  void move_past(const PlacedDocument& document);
  Json describe_job() const;
  // But for what was left by one that was killed before it had an index.
  void require_empty() const;
  void go_on(const Tokenizer& tokenizer);
  // Files that were not begun may have been mended meanwhile.
  void require_same_files(const Json& before, const Json& now) const;
  // Leaves the folder as one in which nothing was begun. Throws Error.
  [[noreturn]] void refuse_nothing();
  void save();
  // Where the hashes of the documents that begin in a file lie, until all of them are known.
  std::filesystem::path hashes_path(const std::string& name) const;
  void read_hashes();
  // Which are needed until all documents are known.
  void remove_hashes() const;

  const TokenizeJob& job_;
  int32_t end_of_document_;
  TokenIndex index_;
  DocumentPlace place_;    // up to which what was written stands
  DocumentPlace read_to_;  // up to which documents were added
  TokenizeResult counts_;
  int64_t documents_ = 0;
  std::unique_ptr<TokenFileWriter> writer_;
  std::unordered_set<TextHash, HashOfText> seen_;
  bool failed_ = false;               // to write, in the midst of something
  std::vector<TextHash> new_hashes_;  // of documents that begin in the file that is being written
};

}  // namespace attnres
