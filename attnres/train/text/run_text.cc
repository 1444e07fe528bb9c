#include "attnres/train/text/run_text.h"

#include <utility>

#include "attnres/data/passes.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/hex.h"
#include "attnres/support/program.h"
#include "attnres/support/random.h"
#include "attnres/support/shell.h"
#include "attnres/train/text/plain_text.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

// With fewer, the mean of losses that spread by 2 nats is off by more than 0.03.
constexpr int64_t kFewValidationTokens = 4096;

SplitRule rule_of(const Json& run) {
  const std::string name = run.at("data").value("split", "");
  if (name.empty()) return SplitRule::by_file;
  if (name == "by_size") return SplitRule::by_size;
  if (name == "end") return SplitRule::end;
  require(name == "given",
          "run.json: data.split: expected by_size, given or end, got {}; another version of "
          "attnres wrote it",
          name);
  return SplitRule::given;
}

Json absolute(const std::vector<fs::path>& paths) {
  Json list = Json::array();
  for (const fs::path& path : paths) list.push_back(fs::absolute(path).string());
  return list;
}

// Of what a run is told to have recorded.
const Json& recorded_in(const Json& data, const char* key) {
  require(data.contains(key), "run.json: it has no data.{}, which says what the run held out", key);
  return data.at(key);
}

std::vector<fs::path> paths_in(const Json& data, const char* key) {
  std::vector<fs::path> paths;
  for (const Json& path : recorded_in(data, key)) paths.emplace_back(path.get<std::string>());
  return paths;
}

// Throws unless the text that a run was trained on is there.
void require_there(const std::vector<fs::path>& paths, const std::string& advice) {
  for (const fs::path& path : paths) {
    require(path_exists(path), "{}: the text of this run is no longer there; {}", path.string(),
            advice);
  }
}

bool packs_documents(const Recipe& recipe) {
  return packing_named(recipe.data.packing) == Packing::documents;
}

void show_text(const std::string& description, const RunText& text, const Recipe& recipe,
               TrainObserver& observer) {
  const TrainConfig& train = recipe.train;
  const bool fills_rows = !packs_documents(recipe);
  const double there = text.record["train_tokens"];
  const double taken =
      static_cast<double>(train.steps) * static_cast<double>(train.batch_size * train.context);
  const double held = text.record["validation_tokens"];
  const int64_t counted = std::ssize(text.validation.counted());
  observer.on_message(fmt::format(
      "data: {}; {} tokens to train on ({}{} in this run), {} to validate{}", description,
      format_count(there), fills_rows ? "" : "at most ", format_passes(taken / there, "them"),
      format_count(held),
      text.validation.counts.empty()
          ? ""
          : fmt::format(", of which {} count", format_count(static_cast<double>(counted)))));
  if (counted < kFewValidationTokens) {
    observer.on_message(
        fmt::format("warning: only {} tokens to validate on: small differences between losses are "
                    "chance. Give more text, a larger data.validation_fraction, or text to "
                    "validate on (--validation)",
                    counted));
  }
}

// Packed documents need not.
void require_fills_a_context(const EvaluationTokens& validation, const Recipe& recipe) {
  if (packs_documents(recipe)) {
    require(validation.ids.size() >= 2, "validation text: {}, but scoring needs 2; give more text",
            counted(std::ssize(validation.ids), "token"));
    return;
  }
  require(std::ssize(validation.ids) >= recipe.train.context,
          "validation text: {} tokens, but a context has {}; give more text, or a shorter "
          "train.context",
          validation.ids.size(), recipe.train.context);
}

// Text to validate on that is not part of the data.
struct GivenValidation {
  ScoredDocuments documents;
  std::string description;
  uint64_t hash = 0;
};

GivenValidation read_given_validation(const std::vector<fs::path>& paths,
                                      const Tokenizer& tokenizer) {
  if (are_tokens(paths)) {
    require_tokens_of(paths, tokenizer);
    RunTokens tokens = read_validation_tokens(paths, vocabulary_of(tokenizer));
    return {std::move(tokens.validation), std::move(tokens.description), tokens.hash};
  }
  const Corpus corpus = without_duplicates(read_corpus(paths));
  TokenStream stream = tokenize(passages_of(corpus), tokenizer);
  return {{.tokens = {std::move(stream.tokens)}, .ends = std::move(stream.ends)},
          corpus.description(),
          corpus.hash};
}

// Tokens whose documents nothing tells but they themselves.
int64_t tokens_without_ends(const std::vector<TrainingTokens>& streams) {
  int64_t count = 0;
  for (const TrainingTokens& stream : streams) {
    for (const TokenPiece& piece : stream.pieces()) count += piece.knows_ends ? 0 : piece.count;
  }
  return count;
}

// Which documents a run leaves out of what it validates on, as it has recorded them.
std::vector<int64_t> left_out_of(const Json& data) {
  return data.value("validation_left_out", std::vector<int64_t>());
}

// Leaves out of `validation` the documents that are trained on: of a run that goes on those that it
// left out when it began. Returns what there is to say of it.
std::string leave_out_what_is_trained_on(ScoredDocuments& validation, RunText& text,
                                         const Json& recorded, const Recipe& recipe,
                                         TrainObserver& observer) {
  const Vocabulary vocabulary = vocabulary_of(*text.tokenizer);
  std::vector<int64_t> shared;
  if (!recorded.is_null()) {
    shared = left_out_of(recorded.at("data"));
  } else {
    observer.on_activity("looking for validation text in what is trained on");
    std::vector<TrainingTokens> streams;
    for (const TrainBatches::Source& source : text.train) streams.push_back(source.tokens);
    constexpr int64_t kMostRead = int64_t{1} << 34;  // half a minute from a disk
    if (const int64_t count = tokens_without_ends(streams); count > kMostRead) {
      observer.on_message(fmt::format(
          "warning: {} tokens of .bin files are too many to be read for validation text among "
          "them: whether they hold any is not known",
          format_count(static_cast<double>(count))));
      return "";
    }
    shared =
        find_shared_documents(validation, streams, vocabulary.size, vocabulary.end_of_document);
  }
  if (shared.empty()) return "";
  const int64_t all = validation.count();
  validation = without_documents(validation, shared);
  const int64_t least = packs_documents(recipe) ? 2 : recipe.train.context;
  require(std::ssize(validation.tokens.ids) >= least,
          "validation text: {} of its {} are in the text to train on as well, and of what is left, "
          "{} tokens, {} are needed at least; name text to validate on that --data does not "
          "hold, or none, and a part of the data is held out",
          shared.size(), counted(all, "document"), validation.tokens.ids.size(), least);
  text.record["validation_left_out"] = shared;
  return fmt::format(" ({} of the text to train on skipped)",
                     counted(std::ssize(shared), "document"));
}

// What a run of plain text reads.
RunText read_plain_text(const TextPaths& paths, const Recipe& recipe, const Json& recorded,
                        std::shared_ptr<const Tokenizer> tokenizer, TrainObserver& observer,
                        std::string& description) {
  require_usage(recipe.data.weights.empty(),
                "data.weights: only tokenized sources have weights; tokenize each of them "
                "(attnres tokenize --out), and name the folders as --data");
  const bool goes_on = !recorded.is_null();
  PlainText plain = {.least_validation_bytes = recipe.train.context,
                     .may_grow = !goes_on,
                     .may_be_short = !goes_on && packs_documents(recipe)};
  if (goes_on && rule_of(recorded) == SplitRule::by_file) plain.rule = SplitRule::by_file;
  if (!paths.validation.empty()) plain.rule = SplitRule::given;
  observer.on_activity("reading text");
  const auto data = paths.data.empty() ? default_corpus_paths() : paths.data;
  plain.corpus = read_corpus(data);
  if (plain.rule == SplitRule::given) {
    require_usage(!are_tokens(paths.validation),
                  "--validation: is tokenized, but --data is not; give both alike");
    plain.validation = without_duplicates(read_corpus(paths.validation));
  }
  if (plain.rule != SplitRule::by_file) {
    plain.corpus = without_duplicates(std::move(plain.corpus), plain.validation);
  }
  if (goes_on) {
    plain.least_validation_bytes =
        recorded["data"].value("least_validation_bytes", plain.least_validation_bytes);
  }
  TokenizedText tokens =
      tokenize_plain_text(plain, recipe, std::move(tokenizer), paths.runs, observer);

  const Corpus &corpus = plain.corpus, &validation = plain.validation;
  RunText text;
  text.record = {{"paths", absolute(data)},
                 {"description", corpus.description()},
                 {"bytes", corpus.bytes},
                 {"hash", hex(corpus.hash)}};
  description = corpus.description();
  if (plain.rule == SplitRule::given) {
    require_fills_a_context({tokens.validation}, recipe);
    text.record["split"] = "given";
    text.record["hash"] = hex(hash_bytes(hex(corpus.hash) + hex(validation.hash)));
    text.record["validation_paths"] = absolute(paths.validation);
    text.record["validation_description"] = validation.description();
    text.record["validation_hash"] = hex(validation.hash);
    description += "; validation: " + validation.description();
  } else if (plain.rule == SplitRule::by_size) {
    text.record["split"] = "by_size";
    text.record["least_validation_bytes"] = tokens.least_validation_bytes;
  }
  text.record["tokens_hash"] = hex(tokens.tokens_hash);
  text.tokenizer = std::move(tokens.tokenizer);
  text.train.push_back({std::move(tokens.train)});
  text.validation = {std::move(tokens.validation)};
  return text;
}

// What a run of tokenized text maps.
RunText open_tokenized_text(const TextPaths& paths, const Recipe& recipe, const Json& recorded,
                            std::shared_ptr<const Tokenizer> tokenizer, TrainObserver& observer,
                            std::string& description) {
  observer.on_activity("opening tokens");
  RunText text;
  text.tokenizer = std::move(tokenizer);
  require(text.tokenizer != nullptr, "tokens need the tokenizer that they are of");
  const Vocabulary vocabulary = vocabulary_of(*text.tokenizer);
  require_tokens_of(paths.data, *text.tokenizer);
  const bool given = !paths.validation.empty();
  RunTokens tokens = open_run_tokens(paths.data, recipe, vocabulary, /*holds_out=*/!given);
  text.train = std::move(tokens.sources);
  ScoredDocuments validation = std::move(tokens.validation);
  text.tokens_hash = tokens.hash;
  description = tokens.description;
  text.record = {{"paths", absolute(paths.data)},
                 {"description", description},
                 {"hash", hex(tokens.hash)},
                 {"split", given ? "given" : "end"}};
  if (given) {
    GivenValidation own = read_given_validation(paths.validation, *text.tokenizer);
    require_fills_a_context(own.documents.tokens, recipe);
    text.record["hash"] = hex(hash_bytes(hex(tokens.hash) + hex(own.hash)));
    text.record["validation_paths"] = absolute(paths.validation);
    text.record["validation_description"] = own.description;
    text.record["validation_hash"] = hex(own.hash);
    description += "; validation: " + own.description;
    validation = std::move(own.documents);
  }
  // Documents of one folder differ, those of several sources need not.
  if (given || paths.data.size() > 1) {
    description += leave_out_what_is_trained_on(validation, text, recorded, recipe, observer);
  }
  text.validation = std::move(validation.tokens);
  return text;
}

}  // namespace

RunText read_run_text(const TextPaths& paths, const Recipe& recipe, const Json& recorded,
                      std::shared_ptr<const Tokenizer> tokenizer, TrainObserver& observer) {
  if (!recorded.is_null()) {
    require_there(paths.data, "put it back, or name where it lies now with --data");
    require_there(paths.validation, "put it back, or name where it lies now with --validation");
  }
  std::string description;
  RunText text =
      are_tokens(paths.data)
          ? open_tokenized_text(paths, recipe, recorded, std::move(tokenizer), observer,
                                description)
          : read_plain_text(paths, recipe, recorded, std::move(tokenizer), observer, description);
  int64_t tokens = 0;
  for (const TrainBatches::Source& source : text.train) tokens += source.tokens.size();
  text.record["train_tokens"] = tokens;
  text.record["validation_tokens"] = text.validation.ids.size();
  show_text(description, text, recipe, observer);
  return text;
}

Vocabulary vocabulary_of(const Tokenizer& tokenizer) {
  return {tokenizer.vocab_size(), tokenizer.end_of_document()};
}

TrainBatches batches_of(const std::vector<TrainBatches::Source>& tokens, const Recipe& recipe,
                        const Vocabulary& vocabulary) {
  return {tokens,
          {.context = recipe.train.context,
           .rows = recipe.train.batch_size,
           .vocab_size = vocabulary.size,
           .end_of_document = vocabulary.end_of_document,
           .packing = packing_named(recipe.data.packing),
           .order = row_order_named(recipe.data.order),
           .mask_documents = recipe.data.mask_documents,
           .seed = static_cast<uint64_t>(recipe.train.seed)}};
}

EvaluationTokens read_held_out(const RunPaths& run, const Tokenizer& tokenizer) {
  const Json record = read_run_json(run);
  const Json& data = record.at("data");
  const SplitRule rule = rule_of(record);
  const Recipe recipe = parse_recipe(record.at("recipe"));
  const bool given = rule == SplitRule::given;
  const std::vector<fs::path> paths = paths_in(data, given ? "validation_paths" : "paths");
  require_there(
      paths,
      fmt::format("put it back, name where it lies now ({} train --resume --out {} "
                  "{} PATH), or score another with --model and --data",
                  program(), for_shell(run.folder.string()), given ? "--validation" : "--data"));
  const std::string before = recorded_in(data, given ? "validation_hash" : "hash");
  const auto require_unchanged = [&](uint64_t hash, const std::string& description) {
    require(hex(hash) == before,
            "{}: the text of this run has changed, so what it held out is no longer known (hash "
            "{}, now {}: {}, from {}); restore the text, or score another with --model and --data",
            run.folder.string(), before, hex(hash), description,
            paths.empty() ? "no path" : paths.front().string());
  };
  if (given) {
    GivenValidation text = read_given_validation(paths, tokenizer);
    require_unchanged(text.hash, text.description);
    return without_documents(text.documents, left_out_of(data)).tokens;
  }
  if (rule == SplitRule::end) {
    RunTokens text = open_run_tokens(paths, recipe, vocabulary_of(tokenizer), /*holds_out=*/true);
    require_unchanged(text.hash, text.description);
    return without_documents(text.validation, left_out_of(data)).tokens;
  }
  Corpus corpus = read_corpus(paths);
  if (rule == SplitRule::by_size) corpus = without_duplicates(std::move(corpus));
  require_unchanged(corpus.hash, corpus.description());
  const DocumentSplit split = rule == SplitRule::by_file
                                  ? split_by_file(corpus)
                                  : split_by_size(corpus, recipe.data.validation_fraction,
                                                  recorded_in(data, "least_validation_bytes"));
  return {tokenize(split.validation, tokenizer).tokens};
}

}  // namespace attnres
