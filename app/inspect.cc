// The inspect subcommand.
#include "app/inspect.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/commands.h"
#include "app/mixing_matrix.h"
#include "app/options.h"
#include "app/token_ids.h"
#include "attnres/infer/score.h"
#include "attnres/inspect/measure.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/progress.h"
#include "attnres/train/text/run_text.h"

namespace attnres {
namespace {

struct InspectOptions {
  ModelOption model;
  MachineOptions machine;
  std::vector<std::string> data;
  std::optional<std::string> text;
  std::optional<std::string> ids_text;
  int64_t max_tokens = 0;  // 0 where it is not given
  bool matrix = false;
  std::string draw_matrix;
  bool tokens = false;
  std::string draw_tokens;
  std::vector<std::string> sites;
  bool effects = false;
  bool all = false;
  bool json = false;

  bool wants_matrix() const { return all || matrix || !draw_matrix.empty(); }
  bool wants_ranks() const { return all || matrix || json; }  // a drawing has none
  bool wants_tokens() const { return tokens || !draw_tokens.empty(); }
  bool wants_effects() const { return all || effects; }
  bool measures() const {
    return wants_matrix() || wants_tokens() || wants_effects() || !data.empty() || text || ids_text;
  }
  // Tokens and effects are shown alone where nothing else is asked for.
  bool shows_model() const { return all || matrix || !(wants_tokens() || effects); }
  bool wants_weights() const { return measures() && (shows_model() || (effects && json)); }
};

// How much of the text is looked at, where --max-tokens does not say.
constexpr int64_t kWeightsTokens = 8192, kEffectsTokens = 2048, kShownTokens = 64;

std::vector<int32_t> given_ids(const InspectOptions& options, const Transformer& model) {
  try {
    std::vector<int32_t> ids = parse_ids(*options.ids_text);
    check_ids(model, ids);
    return ids;
  } catch (const Error& e) {
    fail_usage("--ids: {}", e.what());
  }
}

std::vector<int32_t> text_to_inspect(const InspectOptions& options, const OpenedModel& opened,
                                     const Tokenizer& tokenizer) {
  if (options.ids_text) return given_ids(options, *opened.model);
  if (options.text) {
    return encode_framed(*options.text == "-" ? read_input() : *options.text, tokenizer);
  }
  if (!options.data.empty()) return tokens_of(options.data, tokenizer, opened.context).ids;
  const RunPaths run{options.model.path};
  require_usage(path_exists(run.run_json()),
                "--matrix, --tokens, --effects and --all are measured on a text: give it with "
                "--data, --text or --ids, or name a run's folder with --model, for what the run "
                "held out");
  return read_held_out(run, tokenizer).ids;
}

Inspection inspect(const InspectOptions& options, const OpenedModel& opened) {
  const Transformer& model = *opened.model;
  Inspection inspection = inspect_model(model, opened.context);
  if (!options.measures()) return inspection;
  const auto tokenizer =
      options.data.empty() && !options.text ? opened.tokenizer_or_ids() : opened.tokenizer();
  const std::vector<int32_t> text = text_to_inspect(options, opened, *tokenizer);
  const auto beginning = [&](int64_t usual) {
    const int64_t most = options.max_tokens > 0 ? options.max_tokens : usual;
    return std::vector<int32_t>(text.begin(),
                                text.begin() + std::min<int64_t>(std::ssize(text), most));
  };
  if (options.wants_tokens()) {
    measure_tokens(model, *tokenizer, opened.context, beginning(kShownTokens), inspection);
    if (!options.sites.empty()) choose_sites(options.sites, *inspection.tokens);
  }
  if (options.wants_weights()) {
    measure_depth_weights(model, opened.context, beginning(kWeightsTokens), inspection);
  }
  if (options.wants_matrix()) {
    measure_matrices(model, opened.context, beginning(kWeightsTokens), options.wants_ranks(),
                     inspection);
  }
  if (options.wants_effects()) {
    ProgressLine progress;
    measure_effects(
        model, *tokenizer, opened.context, beginning(kEffectsTokens),
        [&](int64_t done, int64_t total) {
          progress.update(fmt::format("{}/{} parts left out", done, total));
        },
        inspection);
  }
  return inspection;
}

void print_text(const InspectOptions& options, const OpenedModel& opened,
                const Inspection& inspection, const std::vector<std::filesystem::path>& drawings) {
  const char* separator = "";
  const auto begin_part = [&] {
    fmt::print("{}", separator);
    separator = "\n";
  };
  const auto say_without_weights = [&] {
    fmt::print("{} has no depth weights\n", opened.model->config().depth_mixing.name());
  };
  if (options.shows_model()) {
    begin_part();
    print_model(opened.directory.path(), inspection);
    if (options.measures()) {
      begin_part();
      inspection.sites->empty() ? say_without_weights() : print_depth_weights(inspection);
    }
  }
  if (options.all || options.matrix) {
    begin_part();
    print_matrices(inspection.mixing_matrices);
  }
  if (options.tokens) {
    begin_part();
    inspection.tokens->sites.empty() ? say_without_weights()
                                     : print_tokens(*inspection.tokens, !options.sites.empty());
  }
  if (options.wants_effects()) {
    begin_part();
    print_effects(inspection);
  }
  if (!drawings.empty()) begin_part();
  for (const std::filesystem::path& drawing : drawings) {
    fmt::print("drawing: {}\n", drawing.string());
  }
}

void run_inspect(const InspectOptions& options) {
  options.machine.apply();
  require_usage(options.sites.empty() || options.wants_tokens(),
                "--site chooses what --tokens and --draw-tokens show: give one of them too");
  const OpenedModel opened = open_stored_model(options.model);
  const Inspection inspection = inspect(options, opened);
  std::vector<std::filesystem::path> drawings;
  if (!options.draw_matrix.empty()) {
    for (const InspectedMatrix& matrix : inspection.mixing_matrices) {
      drawings.push_back(
          draw_matrix(matrix.stream, matrix.mean, options.model.path, options.draw_matrix));
    }
  }
  if (!options.draw_tokens.empty()) {
    require(!inspection.tokens->sites.empty(), "--draw-tokens: {} has no depth weights",
            opened.model->config().depth_mixing.name());
    draw_tokens(*inspection.tokens, options.draw_tokens);
    drawings.emplace_back(options.draw_tokens);
  }
  if (options.json) {
    fmt::print("{}\n", inspection_to_json(inspection).dump());
  } else {
    print_text(options, opened, inspection, drawings);
  }
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "inspect",
      "Show a model, and which earlier layers each of its layers reads. Prints configuration and\n"
      "parameters; with a text, where each site looks: the depth weights, averaged over tokens, "
      "and\n"
      "their entropy in nats.");
  const auto options = std::make_shared<InspectOptions>();
  options->model.add_to(command);
  CLI::Option* data = add_path(command, "--data PATH", options->data, "files and folders of text");
  add_option(command, "--text TEXT", options->text,
             "in place of --data: the text itself; standard input if -")
      ->excludes(data);
  add_option(command, "--ids IDS", options->ids_text,
             "in place of --data: token ids, separated by commas, which need no tokenizer")
      ->excludes(data)
      ->excludes("--text");
  add_whole(command, "--max-tokens N", options->max_tokens, {2},
            fmt::format("read only the first N tokens (default: {}; for effects {}, token by "
                        "token {})",
                        kWeightsTokens, kEffectsTokens, kShownTokens));
  command.add_flag("--matrix", options->matrix,
                   "print the depth mixing matrix and its semiseparable rank");
  add_path(command, "--draw-matrix FILE", options->draw_matrix, "draw it as an SVG file");
  command.add_flag("--tokens", options->tokens,
                   "print the depth weights token by token, averaged over sites");
  add_path(command, "--draw-tokens FILE", options->draw_tokens,
           "draw them as an SVG file, a panel for each site");
  add_option(command, "--site NAME", options->sites,
             "show only the sites with these names, such as 'attention 2' and output");
  command.add_flag("--effects", options->effects,
                   "print what the loss gains without each layer, sublayer and source; magnitudes; "
                   "how alike the sources are; depth weights by position and by class of token");
  command.add_flag(
      "--all", options->all,
      "depth weights, --matrix and --effects; these are of a run's held-out text where --model is "
      "a run's folder and no text is given");
  command.add_flag("--json", options->json, "print JSON");
  options->machine.add_to(command);
  group_options(command, "The depth mixing matrix", {"--matrix", "--draw-matrix"});
  group_options(command, "Token by token", {"--tokens", "--draw-tokens", "--site"});
  command.footer(
      "Examples:\n"
      "  attnres inspect --model runs/tiny\n"
      "  attnres inspect --model runs/tiny --all\n"
      "  attnres inspect --model runs/tiny --data book.txt --draw-matrix matrix.svg\n"
      "  attnres inspect --model runs/tiny --tokens --text 'To be, or not to be'\n"
      "  attnres inspect --model runs/tiny --draw-tokens tokens.svg --site 'attention 2' output");
  command.callback([options] { run_inspect(*options); });
}

}  // namespace attnres
