#include "attnres/text/hugging_face/tiktoken.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "attnres/support/error.h"
#include "attnres/text/hugging_face/byte_characters.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

const char* const kKimiPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

constexpr int32_t kControlTokens = 258;
constexpr size_t kLongestToken = 1024;  // each of its bytes is a place to cut it at

std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8));
  }
  return bytes;
}

// The tokens' bytes, by rank.
std::vector<std::string> read_ranks(std::string_view text, const std::string& what) {
  std::vector<std::string> tokens;
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view entry = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (entry.empty()) continue;
    const size_t space = std::min(entry.find(' '), entry.size() - 1);
    size_t rank = 0;
    const auto [stop, error] =
        std::from_chars(entry.data() + space + 1, entry.data() + entry.size(), rank);
    auto bytes = from_base64(entry.substr(0, space));
    require(bytes && error == std::errc() && stop == entry.data() + entry.size() &&
                rank == tokens.size(),
            "{}, line {}: expected a token in base64, a space and the rank {}", what, line,
            tokens.size());
    require(bytes->size() <= kLongestToken, "{}, line {}: a token of {} bytes, {} at most are read",
            what, line, bytes->size(), kLongestToken);
    tokens.push_back(std::move(*bytes));
  }
  return tokens;
}

// All pairs of tokens that make a token, by its rank.
BpeModel::Merges merges_of(const std::vector<std::string>& tokens) {
  std::unordered_map<std::string_view, size_t> ranks;
  for (size_t rank = 0; rank < tokens.size(); ++rank) ranks[tokens[rank]] = rank;
  BpeModel::Merges merges;
  for (const std::string_view token : tokens) {
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const std::string_view left = token.substr(0, cut), right = token.substr(cut);
      if (ranks.contains(left) && ranks.contains(right)) merges.emplace_back(left, right);
    }
  }
  return merges;
}

std::string control_token_name(const Json& config, int32_t id) {
  const auto names = config.find("added_tokens_decoder");
  if (names != config.end() && names->is_object()) {
    const auto token = names->find(std::to_string(id));
    if (token != names->end() && token->is_object() && token->contains("content") &&
        (*token)["content"].is_string()) {
      return (*token)["content"].get<std::string>();
    }
  }
  return fmt::format("<|reserved_token_{}|>", id);
}

}  // namespace

TokenizerJson read_tiktoken(std::string_view text, const Json& config, const std::string& what) {
  const Json name = config.is_object() ? config.value("tokenizer_class", Json()) : Json();
  if (name != "TikTokenTokenizer") {
    throw UnreadTokenizer(fmt::format(
        "{}: how its tokenizer splits text is in its code; read here is that of Kimi's, whose "
        "tokenizer_config.json has the tokenizer_class TikTokenTokenizer, and this one has {}; "
        "score and generate take token ids without a tokenizer (--ids)",
        what, shown(name)));
  }
  const std::vector<std::string> tokens = read_ranks(text, what);
  TokenizerJson tokenizer = byte_level_tokenizer(kKimiPattern);
  tokenizer.settings.ignore_merges = true;
  tokenizer.settings.ranks_are_ids = true;
  for (const std::string& token : tokens) {
    tokenizer.vocabulary.emplace_back(as_byte_characters(token),
                                      static_cast<int32_t>(tokenizer.vocabulary.size()));
  }
  for (const auto& [left, right] : merges_of(tokens)) {
    tokenizer.merges.emplace_back(as_byte_characters(left), as_byte_characters(right));
  }
  const auto first_control = static_cast<int32_t>(tokens.size());
  for (int32_t id = first_control; id < first_control + kControlTokens; ++id) {
    tokenizer.added_tokens.push_back(
        {.id = id, .content = control_token_name(config, id), .special = true});
  }
  return tokenizer;
}

}  // namespace attnres
