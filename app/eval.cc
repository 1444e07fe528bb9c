// The eval subcommand.
#include <fmt/core.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "app/commands.h"
#include "app/options.h"
#include "attnres/infer/evaluate.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/json.h"
#include "attnres/support/progress.h"
#include "attnres/text/ids.h"
#include "attnres/train/text/run_text.h"

namespace attnres {
namespace {

struct EvalOptions {
  ModelOption model;
  MachineOptions machine;
  PrecisionOption precision;
  std::string run;
  std::vector<std::string> data;
  int64_t context = 0;
  int64_t max_tokens = 0;
  bool json = false;
};

// The text that is asked for, as tokens.
EvaluationTokens text_to_score(const EvalOptions& options, const Tokenizer& tokenizer,
                               int64_t context) {
  if (!options.run.empty()) return read_held_out(RunPaths{options.run}, tokenizer);
  const std::vector<std::filesystem::path> paths(options.data.begin(), options.data.end());
  if (!are_tokens(paths)) return tokens_of(options.data, tokenizer, context);
  require_tokens_of(paths, tokenizer);
  return read_validation_tokens(paths, vocabulary_of(tokenizer)).validation.tokens;
}

void run_eval(const EvalOptions& options) {
  options.machine.apply();
  require_usage(options.run.empty() != options.data.empty(),
                "name either a text to score (--data PATH), or a run whose held-out text is scored "
                "(--run DIR)");
  require_usage(!options.model.path.empty() || !options.run.empty(),
                "--model: name the model directory or the run to score with");
  if (!options.run.empty()) require_run("--run", options.run);
  const OpenedInference opened =
      open_model(options.model.path.empty() ? ModelOption{.path = options.run} : options.model,
                 options.precision);
  const bool needs_text =
      !options.data.empty() && !are_tokens({options.data.begin(), options.data.end()});
  const auto tokenizer = needs_text ? opened.tokenizer() : opened.tokenizer_or_ids();
  require_usage(options.context <= opened.context,
                "--context {}: this model's context is {} tokens", options.context, opened.context);

  EvaluationSettings settings;
  settings.context = options.context > 0 ? options.context : opened.context;
  settings.max_tokens = options.max_tokens;
  ProgressLine progress;
  std::optional<Eta> eta;
  settings.on_progress = [&](int64_t done, int64_t total) {
    std::string text = fmt::format("{}/{} tokens", done, total);
    if (done == 0) {
      eta.emplace(total);
    } else {
      if (done < total) text += fmt::format(" | {} left", format_duration(eta->left(done)));
      text += " | " + format_rate(eta->rate(done), "tokens");
    }
    progress.update(std::move(text));
  };
  const Evaluation evaluation = evaluate(
      *opened.model, *tokenizer, text_to_score(options, *tokenizer, settings.context), settings);
  progress.finish();
  require(std::isfinite(evaluation.loss),
          "{}: the loss on this text is not finite ({}): the model's weights are damaged, or its "
          "training diverged",
          opened.directory.path().string(),
          std::isnan(evaluation.loss) ? "NaN, not a number" : "infinite");

  const bool has_bytes = tokenizer->kind() != kIds;
  if (options.json) {
    Json json = {{"loss", evaluation.loss}, {"perplexity", evaluation.perplexity}};
    if (has_bytes) json["bits_per_byte"] = evaluation.bits_per_byte;
    json["tokens"] = evaluation.tokens;
    fmt::print("{}\n", json.dump());
    return;
  }
  fmt::print("loss           {:.6f} nats per token\n", evaluation.loss);
  fmt::print("perplexity     {:.6g}\n", evaluation.perplexity);
  if (has_bytes) fmt::print("bits per byte  {:.6f}\n", evaluation.bits_per_byte);
  fmt::print("tokens         {} scored, in windows of {}\n", evaluation.tokens, settings.context);
}

}  // namespace

void add_eval_command(CLI::App& app) {
  CLI::App& command =
      *app.add_subcommand("eval",
                          "Score text: mean loss, perplexity and bits per byte. The text is cut "
                          "into windows of the model's context that do not overlap; the first "
                          "token of each window has no context and is not scored. Where the "
                          "tokenizer begins a text with a token, each document and each window "
                          "begins with it, and all others are scored.");
  const auto options = std::make_shared<EvalOptions>();
  options->model.add_to(command)->required(false);
  add_path(command, "--data PATH", options->data,
           "files and folders of text, or of tokens (attnres tokenize --out, the first 16.8 M); of "
           "conversations only the answers are scored");
  add_path(command, "--run DIR", options->run,
           "in place of --data: all the text that a run held out, scored with its best model or "
           "with --model (training looks at the first train.eval_tokens)");
  add_whole(command, "--context N", options->context, {2, int64_t{1} << 31},
            "tokens in a window (default: the model's context)");
  add_whole(command, "--max-tokens N", options->max_tokens, {2}, "score only the first N tokens");
  command.add_flag("--json", options->json, "print JSON");
  options->precision.add_to(command);
  options->machine.add_to(command);
  command.footer(
      "Examples:\n"
      "  attnres eval --model runs/tiny --data book.txt\n"
      "  attnres eval --run runs/tiny\n"
      "  attnres eval --model runs/tiny --data src/ docs/ --json");
  command.callback([options] { run_eval(*options); });
}

}  // namespace attnres
