// The inspect subcommand: depth weights as means over tokens.
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/inspect.h"

namespace attnres {

Json to_json(const std::vector<SiteDepthWeights>& sites) {
  Json list = Json::array();
  for (const SiteDepthWeights& site : sites) {
    list.push_back({{"site", site.site},
                    {"name", site.name},
                    {"sources", site.sources},
                    {"weights", site.weights},
                    {"entropy", site.entropy}});
  }
  return list;
}

std::string initial_and_number(const std::string& source) {
  const size_t space = source.rfind(' ');
  const bool numbered = space != std::string::npos && std::isdigit(source.back());
  return source.substr(0, 1) + (numbered ? source.substr(space + 1) : "");
}

void print_depth_weights(const std::vector<SiteDepthWeights>& sites) {
  std::vector<std::vector<std::string>> sources;
  for (const SiteDepthWeights& site : sites) sources.push_back(site.sources);
  const std::vector<std::string> columns = all_sources(sources);
  size_t width = 0;
  for (const std::string& column : columns) width += std::max<size_t>(column.size(), 5) + 2;
  const bool wide = width > 80;

  std::vector<std::string> headings = columns;
  if (wide) {
    for (std::string& heading : headings) heading = initial_and_number(heading);
  }
  const auto cell_width = [&](size_t i) { return std::max<size_t>(headings[i].size(), 4) + 2; };

  fmt::print("mean depth weights (rows: sites; columns: sources");
  if (wide)
    fmt::print(", {} = {} to {} = {}", headings[0], columns[0], headings.back(), columns.back());
  fmt::print(")\n\n{:16}", "");
  for (size_t i = 0; i < headings.size(); ++i) fmt::print("{:>{}}", headings[i], cell_width(i));
  fmt::print("  entropy  dominant\n");
  for (const SiteDepthWeights& site : sites) {
    fmt::print("{:16}", site.name);
    for (size_t i = 0; i < columns.size(); ++i) {
      const auto& sources = site.sources;
      const bool has = std::find(sources.begin(), sources.end(), columns[i]) != sources.end();
      fmt::print("{:>{}}", has ? fmt::format("{:.2f}", site.mass(columns[i])) : "", cell_width(i));
    }
    fmt::print("  {:7.3f}  {}\n", site.entropy, site.sources[site.dominant()]);
  }

  const std::optional<DepthWeightSummary> summary = summarize(sites);
  if (!summary) return;
  fmt::print("\nshare of the embedding  {:.3f}  (mean over the sites with two sources or more)\n",
             summary->embedding_share);
  if (summary->own_block) {
    fmt::print("earlier blocks          {:.3f}\n", 1 - *summary->own_block);
    fmt::print("own block               {:.3f}  (mean over the sites inside a block)\n",
               *summary->own_block);
  }
}

}  // namespace attnres
