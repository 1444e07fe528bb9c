// How a stream of documents is cut into rows of a context.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attnres/data/training_tokens.h"
#include "attnres/support/random.h"

namespace attnres {

enum class Packing {
  // Rows of `context` tokens one after another, wherever documents end. Each epoch begins them
  // elsewhere, so that every token is at every place of a row some time.
  stream,
  // Rows of whole documents, as many as fit one after another; what is left of a row does not
  // count. Documents that are longer than a row are cut.
  documents,
};
// "stream", "documents"; the other way it throws UsageError where there is no such packing.
std::string name_of(Packing packing);
Packing packing_named(const std::string& name);

// The inputs of a row: tokens [first, first + count) of the stream. Each one's target is the next.
struct TokenRow {
  int64_t first = 0, count = 0;
};

// A document's first input is the token that ended the one before it, as generation begins, and its
// last target the token that ends it: the rows of documents are cut there.
class PackedRows {
 public:
  // Where some tokens are no targets, rows of documents without a target are left out. Throws Error
  // where there are no more than `context` tokens, unless documents are packed; then it takes two;
  // and where no row has a target, whatever the epoch.
  PackedRows(const TrainingTokens& tokens, int64_t context, Packing packing,
             int32_t end_of_document);

  int64_t size() const { return size_; }  // of an epoch
  // Row i of an epoch that begins at `start`, below starts(). At least one
  // of an epoch has a target, whatever its start.
  TokenRow row(int64_t i, int64_t start) const;
  int64_t starts() const { return starts_; }
  // Any row, wherever it may begin, by the stream's number for this counter.
  TokenRow drawn(const RandomStream& random, uint64_t counter) const;

 private:
  void keep_rows_with_targets(const TrainingTokens& tokens);

  int64_t context_, length_, size_, starts_ = 1;
  std::vector<int64_t> begins_;  // of packed documents' rows, and where the last one ends
  std::vector<int64_t> kept_;    // of these rows those with a target, where there are others
};

}  // namespace attnres
