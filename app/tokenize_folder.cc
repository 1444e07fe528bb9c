#include "app/tokenize_folder.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "app/options.h"
#include "attnres/data/text_sample.h"
#include "attnres/data/token_folder.h"
#include "attnres/data/tokenize_files.h"
#include "attnres/data/verify_tokens.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/interrupt.h"
#include "attnres/support/program.h"
#include "attnres/support/progress.h"
#include "attnres/support/shell.h"
#include "attnres/text/passage.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

std::string shown_count(int64_t count) {
  return format_count(static_cast<double>(count));
}

// A model goes on with its own tokens; a recipe begins with those of any tokenizer.
std::string next_command(const TokenizeFolderOptions& options) {
  const std::string begin = options.model.empty() ? "--recipe recipes/tiny-block-attn-res.json"
                                                  : "--from " + for_shell(options.model.string());
  return fmt::format("{} train {} --data {}{}", program(), begin, for_shell(options.out),
                     options.chat ? " --set data.packing=documents" : "");
}

void show(const TokenizeResult& result, const TokenizeFolderOptions& options) {
  const fs::path out = options.out;
  if (result.was_finished) fmt::print("{}: was tokenized to its end before\n", out.string());
  fmt::print("{}, {} of text, {} tokens", counted(result.documents, "document"),
             format_bytes(static_cast<double>(result.text_bytes)), shown_count(result.tokens));
  if (result.text_bytes > 0) {
    fmt::print(" ({:.2f} bytes each)",
               static_cast<double>(result.text_bytes) / static_cast<double>(result.tokens));
  }
  fmt::print("\nleft out: {}, {}, {}\n", counted(result.duplicates, "duplicate"),
             counted(result.broken, "broken document"), counted(result.binary, "binary file"));
  fmt::print("next:  {}\n", next_command(options));
}

constexpr int64_t kTrainedBytes = 64'000'000;

std::vector<DocumentFile> files_of(const TokenizeFolderOptions& options) {
  require_usage(!options.data.empty(), "--out needs --data: the files to tokenize");
  return find_document_files({options.data.begin(), options.data.end()});
}

std::string field_of(const TokenizeFolderOptions& options) {
  if (!options.field.empty()) return options.field;
  return options.chat ? "messages" : "text";
}

std::unique_ptr<Tokenizer> train_tokenizer(const TokenizeFolderOptions& options,
                                           const TokenizerConfig& config) {
  config.check();
  ProgressLine line;
  line.update("training a tokenizer");
  const std::vector<std::string> sample =
      sample_text(files_of(options), field_of(options), kTrainedBytes);
  std::vector<Passage> passages;
  size_t bytes = 0;
  for (const std::string& text : sample) {
    passages.push_back({"the sample", text});
    bytes += text.size();
  }
  auto tokenizer = make_tokenizer(config, passages);
  line.message(fmt::format("trained a tokenizer of {} on {} of text",
                           counted(tokenizer->vocab_size(), "token"),
                           format_bytes(static_cast<double>(bytes))));
  return tokenizer;
}

}  // namespace

void verify_folder(const std::string& folder) {
  require(is_token_folder(folder),
          "--verify {}: is no folder of tokens; name one that attnres tokenize --out has written",
          folder);
  ProgressLine line;
  std::optional<Eta> eta;
  const std::vector<std::string> problems =
      verify_token_folder(folder, [&](int64_t done, int64_t total) {
        if (!eta) {
          eta.emplace(total);
          return;
        }
        line.update(fmt::format(
            "{:.0f} % | {} left",
            100.0 * static_cast<double>(done) / static_cast<double>(std::max<int64_t>(total, 1)),
            format_duration(eta->left(done))));
      });
  line.finish();
  require(problems.empty(), "{} found; restore the files, or tokenize the text again:\n  {}",
          counted(std::ssize(problems), "problem"), fmt::join(problems, "\n  "));
  const TokenIndex index = read_token_index(folder);
  fmt::print("{}: {} with {} tokens, all as they were written\n", folder,
             counted(std::ssize(index.files), "file"), shown_count(index.tokens()));
}

void tokenize_with_own(const TokenizeFolderOptions& options, const TokenizerConfig& config) {
  require_usage(!options.out.empty(), "--train needs --out: where the tokenizer and the tokens go");
  require_usage(!options.chat, "--train: conversations need a model's chat template (--model)");
  const bool goes_on = is_token_folder(options.out);
  const auto tokenizer = goes_on ? load_tokenizer(options.out) : train_tokenizer(options, config);
  require(tokenizer->kind() == config.kind && tokenizer->vocab_size() == config.vocab_size,
          "{}: was begun with a tokenizer of {} tokens of the kind {}; choose another --out",
          options.out, tokenizer->vocab_size(), tokenizer->kind());
  tokenize_into_folder(options, *tokenizer, ChatTemplate());
}

void tokenize_into_folder(const TokenizeFolderOptions& options, const Tokenizer& tokenizer,
                          const ChatTemplate& chat_template) {
  require_usage(options.tokens_a_file >= 1, "--tokens-a-file: must be at least 1, got {}",
                options.tokens_a_file);
  const InterruptGuard interrupt;
  ProgressLine line;
  TokenizeJob job = {.files = files_of(options),
                     .out = options.out,
                     .field = field_of(options),
                     .chat = options.chat ? &chat_template : nullptr,
                     .strict = options.strict,
                     .tokens_a_file = options.tokens_a_file};
  std::optional<Eta> eta;
  job.on_progress = [&](const TokenizeProgress& now) {
    if (!eta) {
      eta.emplace(now.of_bytes, now.bytes);
      return;
    }
    const double bytes_a_second = eta->rate(now.bytes);
    line.update(fmt::format("{:.0f} % | {} left | {} | {} tokens in {} documents",
                            100.0 * static_cast<double>(now.bytes) /
                                static_cast<double>(std::max<int64_t>(now.of_bytes, 1)),
                            format_duration(eta->left(now.bytes)),
                            format_rate(bytes_a_second, "bytes"), shown_count(now.tokens),
                            shown_count(now.documents)));
  };
  job.on_message = [&](std::string_view text) { line.message(text); };
  job.should_stop = [] { return interrupted(); };
  const TokenizeResult result = tokenize_files(job, tokenizer);
  line.finish();
  if (result.stopped) {
    throw Interrupted(fmt::format("interrupted; {} tokens are saved. The same command goes on",
                                  shown_count(result.tokens)));
  }
  show(result, options);
}

}  // namespace attnres
