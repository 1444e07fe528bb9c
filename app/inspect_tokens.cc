// The inspect subcommand: depth weights token by token.
#include <ATen/ops/tensor.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/inspect.h"
#include "attnres/support/error.h"
#include "attnres/support/terminal.h"
#include "attnres/text/ids.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace {

std::string escaped(unsigned char byte) {
  if (byte == '\n') return "\\n";
  if (byte == '\t') return "\\t";
  return fmt::format("\\x{:02x}", byte);
}

// As it can be printed on one line.
std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    const bool control = byte < 0x20 || byte == 0x7f;
    if (step.kind == Utf8Step::Kind::character && !control) {
      out += text.substr(0, step.bytes);
    } else {
      for (const unsigned char bad : text.substr(0, step.bytes)) out += escaped(bad);
    }
    text.remove_prefix(step.bytes);
  }
  return out;
}

// The first characters, and an ellipsis where there are more.
std::string shortened(const std::string& text, size_t most) {
  if (characters(text) <= most) return text;
  std::string_view rest = text;
  for (size_t i = 0; i + 1 < most; ++i) rest.remove_prefix(utf8_step(rest).bytes);
  return text.substr(0, text.size() - rest.size()) + "…";
}

std::vector<TokenDepthWeights> chosen_sites(std::vector<TokenDepthWeights> all,
                                            const std::vector<std::string>& names) {
  if (names.empty()) return all;
  std::vector<std::string> known;
  for (const TokenDepthWeights& site : all) known.push_back(site.name);
  for (const std::string& name : names) {
    require_usage(std::find(known.begin(), known.end(), name) != known.end(),
                  "--site '{}': this model has depth weights at {}", name,
                  known.empty() ? "no site" : fmt::format("{}", fmt::join(known, ", ")));
  }
  std::erase_if(all, [&](const TokenDepthWeights& site) {
    return std::find(names.begin(), names.end(), site.name) == names.end();
  });
  return all;
}

}  // namespace

InspectedTokens measure_tokens(const OpenedModel& opened, const Tokenizer& tokenizer,
                               std::vector<int32_t> ids, const std::vector<std::string>& sites) {
  require(!ids.empty(), "--tokens: the text is empty; give one with a token at least");
  ids.resize(std::min<size_t>(ids.size(), opened.context));
  InspectedTokens tokens = {.ids = ids, .texts = {}, .sites = {}, .chosen = !sites.empty()};
  const bool has_texts = tokenizer.kind() != kIds;
  for (const int32_t id : ids) {
    // A model may have more embeddings than its tokenizer has tokens.
    tokens.texts.push_back(has_texts && id < tokenizer.vocab_size()
                               ? printable(tokenizer.token_text(id))
                               : fmt::format("{}", id));
  }
  const std::vector<int64_t> wide(ids.begin(), ids.end());
  tokens.sites = chosen_sites(token_depth_weights(*opened.model, at::tensor(wide)), sites);
  return tokens;
}

Json to_json(const InspectedTokens& tokens) {
  Json sites = Json::array();
  for (const TokenDepthWeights& site : tokens.sites) {
    sites.push_back({{"site", site.site},
                     {"name", site.name},
                     {"sources", site.sources},
                     {"weights", site.weights}});
  }
  return {{"ids", tokens.ids}, {"texts", tokens.texts}, {"sites", std::move(sites)}};
}

void print_tokens(const InspectedTokens& tokens) {
  constexpr size_t kNumber = 7, kQuotes = 3;
  std::vector<std::string> names;
  for (size_t t = 0; t < tokens.texts.size(); ++t) {
    names.push_back(fmt::format("{:>5}  \"{}\"", t,
                                shortened(tokens.texts[t], kHeatRowName - kNumber - kQuotes)));
  }
  std::vector<TokenDepthWeights> shown = tokens.sites;
  if (!tokens.chosen) shown = {mean_over_sites(tokens.sites)};
  const char* separator = "";
  for (const TokenDepthWeights& weights : shown) {
    fmt::print("{}", separator);
    print_heat("depth weights token by token", weights, names);
    separator = "\n";
  }
}

}  // namespace attnres
