// The inspect subcommand: what matters, and how much.
#include <fmt/core.h>

#include <iterator>

#include "app/inspect.h"
#include "attnres/support/format.h"
#include "attnres/support/terminal.h"

namespace attnres {
namespace {

void print_drops(const DropEffects& drops, double effective_depth) {
  fmt::print(
      "what the loss gains without a part, nats a token ({:.4f} with all)\n\n"
      "layer         both   attention  feed-forward\n",
      drops.loss);
  for (size_t i = 0; i < drops.layers.size(); ++i) {
    fmt::print("{:5}  {:>+11.4f} {:>+11.4f}   {:>+11.4f}\n", drops.layers[i].layer,
               drops.layers[i].change, drops.sublayers[2 * i].change,
               drops.sublayers[2 * i + 1].change);
  }
  fmt::print("\neffective depth  {:.2f} of {}\n", effective_depth,
             counted(std::ssize(drops.layers), "layer"));
  if (drops.sources.empty()) return;
  fmt::print("\nsource, where others are left\n");
  for (const DropEffects::Source& source : drops.sources) {
    fmt::print("  {:16}{:>+9.4f}\n", source.name, source.change);
  }
}

void print_magnitudes(const Magnitudes& magnitudes) {
  const int sublayers = static_cast<int>(magnitudes.output.size());
  fmt::print("\nroot mean squares     output       state    gradient\n");
  for (int site = 0; site < sublayers; ++site) {
    fmt::print("{:16}{:>12.4g}{:>12.4g}{:>12.4g}\n", site_name(site, sublayers),
               magnitudes.output[site], magnitudes.state[site], magnitudes.gradient[site]);
  }
}

void print_similarity(const SourceSimilarity& similarity) {
  constexpr size_t kName = 14, kNumber = 6;
  const size_t size = similarity.sources.size();
  fmt::print("\ncosine similarity of the sources, mean over tokens\n\n");
  if (kName + kNumber * size > text_columns()) {
    fmt::print("{0} by {0} numbers are too wide for this terminal; --json has them\n", size);
    return;
  }
  fmt::print("{:{}}", "", kName);
  for (const std::string& source : similarity.sources) {
    fmt::print("{:>{}}", initial_and_number(source), kNumber);
  }
  fmt::print("\n");
  for (size_t i = 0; i < size; ++i) {
    fmt::print("{:{}}", similarity.sources[i], kName);
    for (size_t j = 0; j <= i; ++j) fmt::print("{:>{}.2f}", similarity.cosine[i][j], kNumber);
    fmt::print("\n");
  }
}

// A row a group.
void print_groups(const std::string& title, const std::vector<DepthWeightGroup>& groups) {
  if (groups.empty()) return;
  std::vector<std::string> names;
  std::vector<TokenDepthWeights> rows;  // by site, a row a group
  for (const DepthWeightGroup& group : groups) {
    names.push_back(fmt::format("{:13}{:>7}", group.name, group.tokens));
    rows.resize(group.sites.size());
    for (size_t i = 0; i < group.sites.size(); ++i) {
      const SiteDepthWeights& site = group.sites[i];
      rows[i].site = site.site;
      rows[i].sources = site.sources;
      rows[i].weights.push_back(site.weights);
    }
  }
  fmt::print("\n");
  print_heat(fmt::format("depth weights by {}, with the number of tokens", title),
             mean_over_sites(rows), names);
}

}  // namespace

void print_effects(const Inspection& inspection) {
  print_drops(*inspection.effects, *inspection.effective_depth);
  print_magnitudes(*inspection.magnitudes);
  print_similarity(*inspection.similarity);
  print_groups("position", inspection.by_position);
  print_groups("token class", inspection.by_token_class);
}

}  // namespace attnres
