// The inspect subcommand: depth weights as means over tokens.
#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "app/inspect.h"
#include "attnres/support/terminal.h"

namespace attnres {

std::string initial_and_number(const std::string& source) {
  const size_t space = source.rfind(' ');
  const bool numbered = space != std::string::npos && std::isdigit(source.back());
  return source.substr(0, 1) + (numbered ? source.substr(space + 1) : "");
}

void print_depth_weights(const Inspection& inspection) {
  const std::vector<SiteDepthWeights>& sites = *inspection.sites;
  constexpr size_t kNames = 16, kNumber = 4, kEntropy = 7;  // characters of columns
  std::vector<std::vector<std::string>> sources;
  for (const SiteDepthWeights& site : sites) sources.push_back(site.sources);
  const std::vector<std::string> columns = all_sources(sources);
  std::vector<std::string> headings = columns;
  std::string title = "mean depth weights (rows: sites; columns: sources", most = "dominant";
  size_t gap = 2, width = kNames + kEntropy + 2 * gap;
  for (const std::string& column : columns) width += std::max(column.size(), kNumber) + gap;
  const auto longest = std::max_element(columns.begin(), columns.end(),
                                        [](auto& a, auto& b) { return a.size() < b.size(); });
  const bool is_short = width + std::max(longest->size(), most.size()) > text_columns();
  const auto name_of = [&](const std::string& source) {
    return is_short ? initial_and_number(source) : source;
  };
  if (is_short) {
    gap = 1;
    most = "most";
    for (std::string& heading : headings) heading = initial_and_number(heading);
    title += fmt::format(", {} = {} to {} = {}", headings[0], columns[0], headings.back(),
                         columns.back());
  }
  const auto cell_width = [&](size_t i) { return std::max(headings[i].size(), kNumber) + gap; };

  print_wrapped(title + ")");
  fmt::print("\n{:{}}", "", kNames);
  for (size_t i = 0; i < headings.size(); ++i) fmt::print("{:>{}}", headings[i], cell_width(i));
  const std::string space(gap, ' ');
  fmt::print("{0}entropy{0}{1}\n", space, most);
  for (const SiteDepthWeights& site : sites) {
    fmt::print("{:{}}", site.name, kNames);
    for (size_t i = 0; i < columns.size(); ++i) {
      const auto& sources = site.sources;
      const bool has = std::find(sources.begin(), sources.end(), columns[i]) != sources.end();
      fmt::print("{:>{}}", has ? fmt::format("{:.2f}", site.mass(columns[i])) : "", cell_width(i));
    }
    fmt::print("{0}{1:{2}.3f}{0}{3}\n", space, site.entropy, kEntropy,
               name_of(site.sources[site.dominant()]));
  }

  if (!inspection.embedding_share) return;
  const auto print_share = [](const char* of, double share, const char* note) {
    constexpr size_t kShares = 24;
    fmt::print("{:{}}{}\n", of, kShares,
               wrapped(fmt::format("{:.3f} {}", share, note), text_columns(), kShares));
  };
  fmt::print("\n");
  print_share("share of the embedding", *inspection.embedding_share,
              "(mean over the sites with two sources or more)");
  if (inspection.intra_block) {
    print_share("earlier blocks", *inspection.inter_block, "");
    print_share("own block", *inspection.intra_block, "(mean over the sites inside a block)");
  }
}

}  // namespace attnres
