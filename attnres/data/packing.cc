#include "attnres/data/packing.h"

#include <algorithm>

#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

// Where documents end in the stream, the last one at its end.
std::vector<int64_t> document_ends(const TrainingTokens& tokens, int32_t end_of_document) {
  std::vector<int64_t> ends = tokens.ends(0, tokens.size(), end_of_document);
  if (ends.empty() || ends.back() != tokens.size()) ends.push_back(tokens.size());
  return ends;
}

// Where rows begin, and where the last one ends: at most `context` inputs each.
std::vector<int64_t> pack(const std::vector<int64_t>& document_ends, int64_t context) {
  std::vector<int64_t> begins = {0};
  int64_t row = 0, document = 0;  // where both begin
  for (const int64_t end_of_document : document_ends) {
    // The last token is no input of the document, but of the next one.
    const int64_t end = end_of_document - 1;
    if (end - row > context && document > row) {
      row = document;
      begins.push_back(row);
    }
    while (end - row > context) {
      row += context;
      begins.push_back(row);
    }
    document = end;
  }
  if (document > row) begins.push_back(document);
  return begins;
}

}  // namespace

std::string name_of(Packing packing) {
  return packing == Packing::stream ? "stream" : "documents";
}

Packing packing_named(const std::string& name) {
  for (const Packing packing : {Packing::stream, Packing::documents}) {
    if (name == name_of(packing)) return packing;
  }
  fail_usage("data.packing: there is no {}", one_line(name));
}

PackedRows::PackedRows(const TrainingTokens& tokens, int64_t context, Packing packing,
                       int32_t end_of_document)
    : context_(context), length_(tokens.size()) {
  require_usage(context >= 1, "context: must be at least 1 token, got {}", context);
  if (packing == Packing::documents) {
    require(length_ >= 2, "training text: {} tokens; give more text", length_);
    begins_ = pack(document_ends(tokens, end_of_document), context);
    size_ = std::ssize(begins_) - 1;
    if (tokens.marks_targets()) keep_rows_with_targets(tokens);
    return;
  }
  require(length_ > context,
          "training text: {} tokens, but a context of {} needs at least {}; give more text, or a "
          "shorter context",
          length_, context, context + 1);
  size_ = std::max<int64_t>((length_ - context) / context, 1);
  starts_ = std::min(context, length_ - size_ * context);
  // Looks at the tokens that are targets of every epoch.
  require(tokens.has_target(starts_, size_ * context - starts_ + 1),
          "training text: of its {} tokens none counts that is trained on in every epoch; give "
          "conversations with answers, or set data.packing=documents",
          length_);
}

void PackedRows::keep_rows_with_targets(const TrainingTokens& tokens) {
  for (int64_t i = 0; i < size_; ++i) {
    if (tokens.has_target(begins_[i] + 1, begins_[i + 1] - begins_[i])) kept_.push_back(i);
  }
  require(!kept_.empty(),
          "training text: none of its {} tokens counts, so there is nothing to learn; give "
          "conversations with answers",
          length_);
  if (std::ssize(kept_) == size_) kept_ = {};
  if (!kept_.empty()) size_ = std::ssize(kept_);
}

TokenRow PackedRows::row(int64_t i, int64_t start) const {
  if (begins_.empty()) return {start + i * context_, context_};
  if (!kept_.empty()) i = kept_[i];
  return {begins_[i], begins_[i + 1] - begins_[i]};
}

TokenRow PackedRows::drawn(const RandomStream& random, uint64_t counter) const {
  if (begins_.empty()) return row(0, random.below(length_ - context_, counter));
  return row(random.below(size_, counter), 0);
}

}  // namespace attnres
