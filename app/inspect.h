// What the inspect subcommand prints and draws of an inspection, by what it is about.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "attnres/inspect/inspection.h"

namespace attnres {

// The model itself (inspect_model.cc), which lies at `path`.
void print_model(const std::filesystem::path& path, const Inspection& inspection);

// Depth weights as means over tokens (inspect_weights.cc).
void print_depth_weights(const Inspection& inspection);
// "block 12" as "b12", "embedding" as "e".
std::string initial_and_number(const std::string& source);

// Depth weights as rows of cells (inspect_heat.cc): colours where the terminal has them, percent
// where they fit, else characters that a legend explains; in parts where even these do not fit.
// `what` they are stands above. A row's name is at most kHeatRowName characters.
inline constexpr size_t kHeatRowName = 22;
void print_heat(const std::string& what, const TokenDepthWeights& weights,
                const std::vector<std::string>& row_names);

// Depth weights token by token (inspect_tokens.cc): only of the sites with these names. Throws
// UsageError on another name.
void choose_sites(const std::vector<std::string>& names, InspectedTokens& tokens);
// Site by site, or the mean over them.
void print_tokens(const InspectedTokens& tokens, bool by_site);
// As an SVG file (draw_tokens.cc): a panel a site, attention beside feed-forward, a row a
// Transformer layer. Throws Error if it cannot be written.
void draw_tokens(const InspectedTokens& tokens, const std::filesystem::path& file);

// What matters, and how much (inspect_effects.cc).
void print_effects(const Inspection& inspection);

}  // namespace attnres
