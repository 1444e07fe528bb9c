#include "attnres/train/text/run_tokens.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "attnres/data/token_bin.h"
#include "attnres/data/token_folder.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/hex.h"
#include "attnres/support/random.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

// Pieces of a file that has no hash, as far apart as its length allows.
constexpr int64_t kSamples = 256, kSampleTokens = 4096;

struct OpenedTokens {
  std::string name;
  TrainingTokens tokens;
  uint64_t hash = 0;
};

uint64_t hash_samples(const TokenPiece& piece) {
  const auto* bytes = static_cast<const char*>(piece.tokens);
  uint64_t hash = hash_bytes(fmt::format("{} tokens of {} bytes", piece.count, piece.width));
  const int64_t tokens = std::min(kSampleTokens, piece.count);
  for (int64_t i = 0; i < kSamples; ++i) {
    const auto first = static_cast<int64_t>(static_cast<double>(piece.count - tokens) *
                                            static_cast<double>(i) / (kSamples - 1));
    hash =
        hash_bytes({bytes + first * piece.width, static_cast<size_t>(tokens * piece.width)}, hash);
  }
  return hash;
}

OpenedTokens open(const fs::path& path) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  const fs::path last = whole.has_filename() ? whole.filename() : whole.parent_path().filename();
  const std::string name = last.extension() == ".bin" ? last.stem() : last;
  if (is_token_folder(path)) {
    const TokenIndex index = read_token_index(path);
    return {name, open_token_folder(path, index), index.hash()};
  }
  TrainingTokens tokens = open_token_bin(path);
  const uint64_t hash = hash_samples(tokens.pieces().front());
  return {name, std::move(tokens), hash};
}

std::vector<OpenedTokens> open_all(const std::vector<fs::path>& paths) {
  std::vector<OpenedTokens> opened;
  opened.reserve(paths.size());
  for (const fs::path& path : paths) opened.push_back(open(path));
  return opened;
}

uint64_t hash_of(const std::vector<OpenedTokens>& all) {
  std::string hashes;
  for (const OpenedTokens& one : all) hashes += hex(one.hash);
  return hash_bytes(hashes);
}

std::string describe(const std::vector<OpenedTokens>& all) {
  int64_t tokens = 0;
  for (const OpenedTokens& one : all) tokens += one.tokens.size();
  return fmt::format("{}, {} tokens", counted(std::ssize(all), "tokenized source"),
                     format_count(static_cast<double>(tokens)));
}

double weight_of(const OpenedTokens& source, const NamedNumbers& weights) {
  if (weights.empty()) return static_cast<double>(source.tokens.size());
  const auto named = std::find_if(weights.begin(), weights.end(),
                                  [&](const auto& weight) { return weight.first == source.name; });
  require_usage(named != weights.end(), "data.weights: names no weight for {}; name one for each",
                source.name);
  return named->second;
}

void require_sources(const std::vector<OpenedTokens>& sources, const NamedNumbers& weights) {
  std::set<std::string> names;
  for (const OpenedTokens& source : sources) names.insert(source.name);
  for (const auto& [name, weight] : weights) {
    require_usage(names.contains(name), "data.weights.{}: no --data has this name", one_line(name));
  }
  require_usage(weights.empty() || names.size() == sources.size(),
                "data.weights: two of --data have one name; rename one");
}

int64_t held_out_tokens(const OpenedTokens& source, const Recipe& recipe, size_t sources) {
  const int64_t length = source.tokens.size();
  const bool packs = packing_named(recipe.data.packing) == Packing::documents;
  // Rows of packed documents need not be full: half of a short source.
  const int64_t context = packs ? std::min(recipe.train.context, length / 2) : recipe.train.context;
  const auto wanted = static_cast<int64_t>(
      std::llround(static_cast<double>(length) * recipe.data.validation_fraction));
  const int64_t held = std::clamp(
      wanted, context, std::max<int64_t>(context, kMostHeldOut / static_cast<int64_t>(sources)));
  require(packs ? context >= 2 : length > held + context,
          "{}: {} tokens are too few to hold some out for validation, since both parts need at "
          "least {}; give more text, a shorter train.context, or text of its own to validate on "
          "(--validation)",
          source.name, length, packs ? "two" : fmt::format("a context of {}", context));
  return held;
}

ScoredDocuments documents_to_score(const OpenedTokens& source, int64_t first, int64_t count,
                                   const Vocabulary& vocabulary) {
  ScoredDocuments documents = {read_to_score(source.tokens, first, count, vocabulary.size)};
  for (const int64_t end : source.tokens.ends(first, count, vocabulary.end_of_document)) {
    documents.ends.push_back(end - first);
  }
  return documents;
}

}  // namespace

bool are_tokens(const std::vector<fs::path>& paths) {
  size_t tokens = 0;
  for (const fs::path& path : paths) {
    if (is_token_folder(path) || is_token_bin(path)) ++tokens;
  }
  require_usage(tokens == 0 || tokens == paths.size(),
                "--data: some of it is tokenized and some is text; tokenize the rest as well "
                "(attnres tokenize --out)");
  return tokens > 0;
}

std::optional<fs::path> tokenizer_of_tokens(const std::vector<fs::path>& paths) {
  const auto folder = std::find_if(paths.begin(), paths.end(), is_token_folder);
  return folder == paths.end() ? std::nullopt : std::optional(*folder);
}

RunTokens open_run_tokens(const std::vector<fs::path>& paths, const Recipe& recipe,
                          const Vocabulary& vocabulary, bool holds_out) {
  const std::vector<OpenedTokens> opened = open_all(paths);
  require_sources(opened, recipe.data.weights);
  RunTokens all;
  all.hash = hash_of(opened);
  all.description = describe(opened);
  for (const OpenedTokens& source : opened) {
    const double weight = weight_of(source, recipe.data.weights);
    const int64_t length = source.tokens.size();
    const int64_t held = holds_out ? held_out_tokens(source, recipe, opened.size()) : 0;
    all.validation.append(documents_to_score(source, length - held, held, vocabulary));
    all.sources.push_back({source.tokens.first(length - held), weight});
  }
  return all;
}

void require_tokens_of(const std::vector<fs::path>& paths, const Tokenizer& tokenizer) {
  for (const fs::path& path : paths) {
    if (is_token_folder(path)) require_tokens_of(read_token_index(path), tokenizer, path);
  }
}

RunTokens read_validation_tokens(const std::vector<fs::path>& paths, const Vocabulary& vocabulary) {
  const std::vector<OpenedTokens> opened = open_all(paths);
  RunTokens all;
  all.hash = hash_of(opened);
  for (const OpenedTokens& one : opened) {
    const int64_t count =
        std::min(one.tokens.size(), kMostHeldOut - std::ssize(all.validation.tokens.ids));
    all.validation.append(documents_to_score(one, 0, count, vocabulary));
  }
  all.description = describe(opened);
  return all;
}

}  // namespace attnres
