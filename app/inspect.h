// What the inspect subcommand shows, by what it is about.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "app/options.h"
#include "attnres/infer/drop_effects.h"
#include "attnres/model/depth_weights.h"
#include "attnres/model/grouped_depth_weights.h"
#include "attnres/model/magnitudes.h"
#include "attnres/model/source_similarity.h"
#include "attnres/model/token_depth_weights.h"
#include "attnres/support/json.h"

namespace attnres {

// Of the model itself (inspect_model.cc): numbers in each part, and in all.
Json count_parameters(const Transformer& model);
void print_model(const OpenedModel& opened, const Json& parameters);

// Depth weights as means over tokens (inspect_weights.cc).
Json to_json(const std::vector<SiteDepthWeights>& sites);
void print_depth_weights(const std::vector<SiteDepthWeights>& sites);
// "block 12" as "b12", "embedding" as "e".
std::string initial_and_number(const std::string& source);

// Depth weights as rows of cells (inspect_heat.cc): colours where the terminal has them, percent
// where they fit, else characters that a legend explains; in parts where even these do not fit.
// `what` they are stands above. A row's name is at most kHeatRowName characters.
inline constexpr size_t kHeatRowName = 22;
void print_heat(const std::string& what, const TokenDepthWeights& weights,
                const std::vector<std::string>& row_names);

// Depth weights token by token (inspect_tokens.cc).
struct InspectedTokens {
  std::vector<int32_t> ids;
  // As they can be printed: "\n", "\xe2"; the ids of a model without a tokenizer.
  std::vector<std::string> texts;
  std::vector<TokenDepthWeights> sites;  // those asked for
  bool chosen = false;                   // whether the sites were named
};
// `sites`: names of sites; empty for all. Throws UsageError on another name.
InspectedTokens measure_tokens(const OpenedModel& opened, const Tokenizer& tokenizer,
                               std::vector<int32_t> ids, const std::vector<std::string>& sites);
Json to_json(const InspectedTokens& tokens);
void print_tokens(const InspectedTokens& tokens);
// As an SVG file (draw_tokens.cc): a panel a site, attention beside feed-forward, a row a
// Transformer layer. Throws Error if it cannot be written.
void draw_tokens(const InspectedTokens& tokens, const std::filesystem::path& file);

// What matters, and how much (inspect_effects.cc).
struct InspectedEffects {
  DropEffects drops;
  Magnitudes magnitudes;
  SourceSimilarity similarity;
  std::vector<DepthWeightGroup> by_position, by_token_class;
};
InspectedEffects measure_effects(const OpenedModel& opened, const Tokenizer& tokenizer,
                                 const std::vector<int32_t>& tokens);
// Adds the keys effects, effective_depth, magnitudes, similarity, by_position, by_token_class.
void add_effects(Json& json, const InspectedEffects& effects);
void print_effects(const InspectedEffects& effects);

}  // namespace attnres
