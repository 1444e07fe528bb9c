#include "attnres/pretrained/gguf_pre_tokenizer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "attnres/text/hugging_face/bpe_trainer.h"
#include "attnres/text/hugging_face/tiktoken.h"

namespace attnres {
namespace {

constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepSeek3Pattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Json isolated(const char* pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

TokenizerJson split_by(const Json& pre_tokenizer) {
  TokenizerJson tokenizer;
  tokenizer.pre_tokenizer = pre_tokenizer;
  tokenizer.decoder = byte_level(/*use_regex=*/true);
  return tokenizer;
}

Json sequence(std::vector<Json> steps) {
  return {{"type", "Sequence"}, {"pretokenizers", Json(std::move(steps))}};
}

std::vector<std::pair<std::string, TokenizerJson>> known_tokenizers() {
  TokenizerJson llama = byte_level_tokenizer(kLlama3Pattern);
  llama.settings.ignore_merges = true;
  TokenizerJson qwen = byte_level_tokenizer(kQwen2Pattern);
  qwen.normalizer = {{"type", "NFC"}};
  TokenizerJson kimi = byte_level_tokenizer(kKimiPattern);
  kimi.settings.ignore_merges = true;
  kimi.settings.ranks_are_ids = true;
  const TokenizerJson smollm =
      split_by(sequence({{{"type", "Digits"}, {"individual_digits", true}}, byte_level(true)}));
  const TokenizerJson deepseek =
      split_by(sequence({isolated(R"(\p{N}{1,3})"), isolated("[一-龥぀-ゟ゠-ヿ]+"),
                         isolated(kDeepSeek3Pattern), byte_level(false)}));
  const TokenizerJson gpt2 = split_by(byte_level(true));
  std::vector<std::pair<std::string, TokenizerJson>> known;
  const auto add = [&](const TokenizerJson& tokenizer, const std::vector<const char*>& names) {
    for (const char* name : names) known.emplace_back(name, tokenizer);
  };
  // The first of several names for one is written.
  add(gpt2, {"gpt-2", "mpt", "phi-2", "olmo", "jais", "trillion", "gigachat", "jina-es", "jina-de",
             "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum"});
  add(llama, {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0",
              "lfm2", "jina-v5-nano"});
  add(qwen, {"qwen2", "deepseek-r1-qwen"});
  add(smollm, {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"});
  add(deepseek, {"deepseek-v3"});
  add(kimi, {"kimi-k2"});
  return known;
}

// With line ends in expressions as their escapes.
std::string escaped(const std::string& pattern) {
  std::string text;
  for (const char c : pattern) {
    if (c == '\r' || c == '\n') {
      text += c == '\r' ? "\\r" : "\\n";
    } else {
      text += c;
    }
  }
  return text;
}

// The steps of a normalizer or a pre-tokenizer, a line each: what they do and not how a file writes
// it.
std::string steps_of(const Json& part) {
  if (part.is_null()) return "";
  for (const char* key : {"pretokenizers", "normalizers"}) {
    if (!part.contains(key)) continue;
    std::string steps;
    for (const Json& step : part[key]) steps += steps_of(step);
    return steps;
  }
  const std::string type = part.value("type", "");
  if (type == "ByteLevel") {
    return fmt::format("ByteLevel {} {}\n", part.value("add_prefix_space", true),
                       part.value("use_regex", true));
  }
  if (type == "Split" && part["pattern"].contains("Regex")) {
    return fmt::format("Split {} {} {}\n", escaped(part["pattern"]["Regex"].get<std::string>()),
                       part.value("behavior", ""), part.value("invert", false));
  }
  return part.dump() + "\n";
}

}  // namespace

std::optional<std::string> gguf_pre_tokenizer(const TokenizerJson& tokenizer) {
  for (const auto& [name, known] : known_tokenizers()) {
    if (steps_of(tokenizer.pre_tokenizer) == steps_of(known.pre_tokenizer) &&
        steps_of(tokenizer.normalizer) == steps_of(known.normalizer) &&
        tokenizer.settings.ignore_merges == known.settings.ignore_merges) {
      return name;
    }
  }
  return std::nullopt;
}

std::optional<TokenizerJson> tokenizer_of_pre(std::string_view name) {
  for (auto& [known_name, known] : known_tokenizers()) {
    if (known_name == name) return std::move(known);
  }
  return std::nullopt;
}

bool adds_begin_of_pre(std::string_view name) {
  // All that it splits as Llama 3.
  const auto known = tokenizer_of_pre(name);
  return known && gguf_pre_tokenizer(*known) == "llama-bpe";
}

std::string known_pre_tokenizers() {
  std::vector<std::string> names;
  for (const auto& [name, known] : known_tokenizers()) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace attnres
