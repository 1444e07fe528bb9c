// The inspect subcommand: depth weights token by token.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "app/inspect.h"
#include "attnres/support/error.h"
#include "attnres/support/terminal.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace {

// The first characters, and an ellipsis where there are more.
std::string shortened(const std::string& text, size_t most) {
  if (characters(text) <= most) return text;
  std::string_view rest = text;
  for (size_t i = 0; i + 1 < most; ++i) rest.remove_prefix(utf8_step(rest).bytes);
  return text.substr(0, text.size() - rest.size()) + "…";
}

}  // namespace

void choose_sites(const std::vector<std::string>& names, InspectedTokens& tokens) {
  std::vector<std::string> known;
  for (const TokenDepthWeights& site : tokens.sites) known.push_back(site.name);
  for (const std::string& name : names) {
    require_usage(std::find(known.begin(), known.end(), name) != known.end(),
                  "--site '{}': this model has depth weights at {}", name,
                  known.empty() ? "no site" : fmt::format("{}", fmt::join(known, ", ")));
  }
  std::erase_if(tokens.sites, [&](const TokenDepthWeights& site) {
    return std::find(names.begin(), names.end(), site.name) == names.end();
  });
}

void print_tokens(const InspectedTokens& tokens, bool by_site) {
  constexpr size_t kNumber = 7, kQuotes = 3;
  std::vector<std::string> names;
  for (size_t t = 0; t < tokens.texts.size(); ++t) {
    names.push_back(fmt::format("{:>5}  \"{}\"", t,
                                shortened(tokens.texts[t], kHeatRowName - kNumber - kQuotes)));
  }
  std::vector<TokenDepthWeights> shown = tokens.sites;
  if (!by_site) shown = {mean_over_sites(tokens.sites)};
  const char* separator = "";
  for (const TokenDepthWeights& weights : shown) {
    fmt::print("{}", separator);
    print_heat("depth weights token by token", weights, names);
    separator = "\n";
  }
}

}  // namespace attnres
