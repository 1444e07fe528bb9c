// Documents that are validated on and trained on as well, told by their tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "attnres/data/evaluation_batches.h"
#include "attnres/data/training_tokens.h"

namespace attnres {

// Tokens to score, and which of them are whose.
struct ScoredDocuments {
  EvaluationTokens tokens;
  // Where documents end, ascending. What follows the last end is the beginning of one that is cut.
  std::vector<int64_t> ends = {};

  int64_t count() const;  // of documents, what is left of a cut one among them
  void append(const ScoredDocuments& more);
};

// The numbers of those documents, from 0 on, that are documents of one of the streams, ascending;
// of one that is cut, where enough of it is left to tell, whether a document of a stream begins as
// it does. Documents without a token beside their end are passed over. Reads the streams' ends, and
// the tokens of documents that are as long as one that is looked for. Throws as
// TrainingTokens::read and ::ends.
std::vector<int64_t> find_shared_documents(const ScoredDocuments& scored,
                                           const std::vector<TrainingTokens>& streams,
                                           int64_t vocab_size, int32_t end_of_document);

// All but those.
ScoredDocuments without_documents(const ScoredDocuments& scored,
                                  const std::vector<int64_t>& numbers);

}  // namespace attnres
