#include "attnres/train/run_text.h"

#include <nlohmann/json.hpp>

#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/random.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

// With fewer, the mean of losses that spread by 2 nats is off by more than 0.03.
constexpr int64_t kFewValidationTokens = 4096;

enum class SplitRule { by_size, by_file, given };

SplitRule rule_of(const Json& run) {
  const std::string name = run.at("data").value("split", "");
  if (name.empty()) return SplitRule::by_file;
  if (name == "by_size") return SplitRule::by_size;
  require(name == "given",
          "run.json: data.split: expected by_size or given, got {}; another version of attnres "
          "wrote it",
          name);
  return SplitRule::given;
}

std::string hex(uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

// Identity of what the model sees.
uint64_t hash_tokens(const Split& split) {
  uint64_t hash = hash_bytes("");
  for (const auto* tokens : {&split.train.tokens, &split.validation.tokens}) {
    hash = hash_bytes({reinterpret_cast<const char*>(tokens->data()), tokens->size() * 4}, hash);
  }
  return hash;
}

Json absolute(const std::vector<fs::path>& paths) {
  Json list = Json::array();
  for (const fs::path& path : paths) list.push_back(fs::absolute(path).string());
  return list;
}

std::vector<fs::path> paths_in(const Json& data, const char* key) {
  std::vector<fs::path> paths;
  for (const Json& path : data.at(key)) paths.emplace_back(path.get<std::string>());
  return paths;
}

void show_text(const std::string& description, const Split& split, TrainObserver& observer) {
  const auto count = [](const TokenStream& stream) {
    return format_count(static_cast<double>(stream.tokens.size()));
  };
  observer.on_message(fmt::format("data: {}; {} tokens to train on, {} to validate", description,
                                  count(split.train), count(split.validation)));
  if (std::ssize(split.validation.tokens) < kFewValidationTokens) {
    observer.on_message(
        fmt::format("warning: only {} tokens to validate on: small differences between losses are "
                    "chance. Give more text, a larger data.validation_fraction, or text to "
                    "validate on (--validation)",
                    split.validation.tokens.size()));
  }
}

}  // namespace

RunText read_run_text(const TextPaths& paths, const Recipe& recipe, const Json& recorded,
                      const TokenizerFor& tokenizer_for, TrainObserver& observer) {
  const bool goes_on = !recorded.is_null();
  SplitRule rule = SplitRule::by_size;
  if (goes_on && rule_of(recorded) == SplitRule::by_file) rule = SplitRule::by_file;
  if (!paths.validation.empty()) rule = SplitRule::given;
  observer.on_activity("reading text");
  const auto data = paths.data.empty() ? default_corpus_paths() : paths.data;
  Corpus corpus = read_corpus(data), validation;
  if (rule == SplitRule::given) validation = without_duplicates(read_corpus(paths.validation));
  if (rule != SplitRule::by_file) corpus = without_duplicates(std::move(corpus), validation);

  RunText text;
  text.record = {{"paths", absolute(data)},
                 {"description", corpus.description()},
                 {"bytes", corpus.bytes},
                 {"hash", hex(corpus.hash)}};
  std::string description = corpus.description();
  observer.on_activity("tokenizing");
  const auto tokenize_as = [&](const DocumentSplit& documents) {
    text.tokenizer = tokenizer_for(documents.train);
    text.split = tokenize(documents, *text.tokenizer);
  };
  const auto fills_a_context = [&] {
    return std::ssize(text.split.validation.tokens) >= recipe.train.context;
  };
  switch (rule) {
    case SplitRule::given:
      tokenize_as({passages_of(corpus), passages_of(validation)});
      require(fills_a_context(),
              "validation text: {} tokens, but a context has {}; give more text, or a shorter "
              "train.context",
              text.split.validation.tokens.size(), recipe.train.context);
      text.record["split"] = "given";
      text.record["hash"] = hex(hash_bytes(hex(corpus.hash) + hex(validation.hash)));
      text.record["validation_paths"] = absolute(paths.validation);
      text.record["validation_description"] = validation.description();
      text.record["validation_hash"] = hex(validation.hash);
      description += "; validation: " + validation.description();
      break;
    case SplitRule::by_file:
      tokenize_as(split_by_file(corpus));
      break;
    case SplitRule::by_size: {
      int64_t least = recipe.train.context;
      if (goes_on) least = recorded["data"].value("least_validation_bytes", least);
      const auto hold_out = [&] {
        tokenize_as(split_by_size(corpus, recipe.data.validation_fraction, least));
      };
      hold_out();
      while (!goes_on && !fills_a_context()) {  // a token can have many bytes
        least *= 2;
        hold_out();
      }
      text.record["split"] = "by_size";
      text.record["least_validation_bytes"] = least;
      break;
    }
  }
  text.record["tokens_hash"] = hex(hash_tokens(text.split));
  text.record["train_tokens"] = text.split.train.tokens.size();
  text.record["validation_tokens"] = text.split.validation.tokens.size();
  show_text(description, text.split, observer);
  return text;
}

TokenStream read_held_out(const RunPaths& run, const Tokenizer& tokenizer) {
  const Json record = read_run_json(run);
  const Json& data = record.at("data");
  const SplitRule rule = rule_of(record);
  const bool given = rule == SplitRule::given;
  Corpus corpus = read_corpus(paths_in(data, given ? "validation_paths" : "paths"));
  if (rule != SplitRule::by_file) corpus = without_duplicates(std::move(corpus));
  const std::string before = data.at(given ? "validation_hash" : "hash");
  require(hex(corpus.hash) == before,
          "{}: the text of this run has changed, so what it held out is no longer known (hash {}, "
          "now {}: {}, from {}); restore the text, or score another with --model and --data",
          run.folder.string(), before, hex(corpus.hash), corpus.description(),
          paths_in(data, given ? "validation_paths" : "paths").front().string());
  switch (rule) {
    case SplitRule::given:
      return tokenize(passages_of(corpus), tokenizer);
    case SplitRule::by_file:
      return tokenize(split_by_file(corpus).validation, tokenizer);
    case SplitRule::by_size:
      break;
  }
  const double fraction = parse_recipe(record.at("recipe")).data.validation_fraction;
  const int64_t least = data.at("least_validation_bytes");
  return tokenize(split_by_size(corpus, fraction, least).validation, tokenizer);
}

}  // namespace attnres
