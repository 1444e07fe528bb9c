// What `attnres inspect` measures of a model, and its JSON: what `--json` prints, and what a study
// keeps of each of its runs as inspection.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attnres/depth/mixing_matrix.h"
#include "attnres/inspect/drop_effects.h"
#include "attnres/inspect/grouped_depth_weights.h"
#include "attnres/inspect/source_similarity.h"
#include "attnres/model/config.h"
#include "attnres/model/depth_weights.h"
#include "attnres/model/magnitudes.h"
#include "attnres/model/token_depth_weights.h"
#include "attnres/support/json.h"

namespace attnres {

struct InspectedMatrix {
  std::string stream;  // as MixingMatrix has them
  Matrix mean;
  // That of the mean, and the median of the samples'. 0 where they were not measured.
  int semiseparable_rank = 0, semiseparable_rank_of_samples = 0;
};

struct InspectedTokens {
  std::vector<int32_t> ids;
  // As they can be printed: "\n", "\xe2"; the ids of a model without a tokenizer.
  std::vector<std::string> texts;
  std::vector<TokenDepthWeights> sites;
};

// Its members are the keys of its JSON. Lists that are empty and what was not measured are left out
// of that; numbers that are not finite are null.
struct Inspection {
  std::optional<ModelConfig> model;  // none of one that was read: its run's recipe has it
  int64_t vocab_size = 0, context = 0;
  std::vector<std::pair<std::string, int64_t>> parameters;  // by part of the model, and in total

  std::optional<std::vector<SiteDepthWeights>> sites;  // empty: the mechanism has no weights
  // Means over sites: see DepthWeightSummary. What is not the own block's is earlier blocks'.
  std::optional<double> embedding_share, inter_block, intra_block;
  std::vector<InspectedMatrix> mixing_matrices;
  std::optional<InspectedTokens> tokens;
  std::optional<DropEffects> effects;
  std::optional<double> effective_depth;
  std::optional<Magnitudes> magnitudes;
  std::optional<SourceSimilarity> similarity;
  std::vector<DepthWeightGroup> by_position, by_token_class;
};

Json inspection_to_json(Inspection inspection);

// Keys that are not known are passed over; what is absent or of another type is 0, empty or, of
// numbers that were measured, NaN. Throws Error, naming `what`, where it is no object.
Inspection read_inspection(const Json& json, const std::string& what);

}  // namespace attnres
