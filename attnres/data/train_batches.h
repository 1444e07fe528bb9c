// Rows of tokens in the order in which training takes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attnres/data/mixture.h"
#include "attnres/data/packing.h"
#include "attnres/data/training_tokens.h"
#include "attnres/model/batch.h"

namespace attnres {

enum class RowOrder {
  epochs,  // each row once, in another order each time
  drawn,   // any rows, which may come again before others came: as earlier versions did
};
// "epochs", "drawn"; the other way it throws UsageError where there is no such order.
std::string name_of(RowOrder order);
RowOrder row_order_named(const std::string& name);

struct TrainBatchSettings {
  int64_t context = 256;        // tokens a row
  int64_t rows = 1;             // of a step
  int64_t vocab_size = 0;       // that tokens are below
  int32_t end_of_document = 0;  // the token
  Packing packing = Packing::stream;
  RowOrder order = RowOrder::epochs;
  bool mask_documents = false;  // documents of a row do not see each other
  uint64_t seed = 0;
};

// The rows of each source come in an order of their own, each epoch in another (Permutation); the
// sources take turns by their weights (Mixture). What a row holds depends only on the sources,
// the settings, the step and the row: training resumes exactly, 2 parts of 4 rows are 1 of 8, and
// several processes take what one would. Nothing is kept but, of packed documents, a number a row.
//
// Where some tokens are no targets, as in conversations, a row may have none: of packed documents
// it is left out, of a stream the next row of the order takes its place as well as its own. So
// every row has a target.
class TrainBatches {
 public:
  // A source, and its weight where there are several. Throws Error where one is too short, and
  // UsageError where a weight is not above 0, and where rows without targets would be drawn.
  struct Source {
    TrainingTokens tokens;
    double weight = 1;
  };
  TrainBatches(std::vector<Source> sources, const TrainBatchSettings& settings);

  // Rows part * count and following of a step, counted from 1. Of rows that are not full the
  // rest has targets of -100. Throws Error naming the place of a token outside the vocabulary.
  Batch batch(int64_t step, int64_t part, int64_t count) const;

  // Where a row of a step lies: in which source, and which of its tokens. Rows count from 0.
  struct Place {
    int source = 0;
    TokenRow row;
  };
  Place place(int64_t step, int64_t row) const;

  // Rows that a source has in an epoch.
  int64_t rows_of(int source) const { return rows_.at(source).size(); }

 private:
  TokenRow next_row(Mixture::Turn turn) const;

  std::vector<Source> sources_;
  TrainBatchSettings settings_;
  std::vector<PackedRows> rows_;
  Mixture mixture_;
};

}  // namespace attnres
