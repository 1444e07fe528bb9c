// The inspect subcommand.
#include "app/inspect.h"

#include <ATen/core/grad_mode.h>
#include <fmt/core.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/commands.h"
#include "app/mixing_matrix.h"
#include "app/token_ids.h"
#include "attnres/data/evaluation_batches.h"
#include "attnres/infer/score.h"
#include "attnres/model/model_mixing_matrix.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/train/run_text.h"

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

// What was measured on the text.
struct Measured {
  std::vector<SiteDepthWeights> sites;
  std::vector<MixingMatrix> matrices;
  std::optional<InspectedTokens> tokens;
  std::optional<InspectedEffects> effects;
};

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
    if (*options.text != "-") return tokenizer.encode(*options.text);
    return tokenizer.encode(std::string(std::istreambuf_iterator<char>(std::cin), {}));
  }
  if (!options.data.empty()) return tokens_of(options.data, tokenizer);
  const RunPaths run{options.model.path};
  require_usage(std::filesystem::exists(run.run_json()),
                "--matrix, --tokens, --effects and --all are measured on a text: give it with "
                "--data, --text or --ids, or name a run's folder with --model, for what the run "
                "held out");
  return read_held_out(run, tokenizer).ids;
}

// On one window of the text.
std::vector<MixingMatrix> measure_matrices(const OpenedModel& opened,
                                           const std::vector<int32_t>& tokens) {
  constexpr int64_t kMostTokens = 512;
  const EvaluationBatches batches({tokens}, std::min(opened.context, kMostTokens),
                                  /*batch_size=*/1);
  return mixing_matrices(*opened.model, batches[0].inputs_BT);
}

std::vector<SiteDepthWeights> measure_weights(const OpenedModel& opened,
                                              const std::vector<int32_t>& tokens) {
  const EvaluationBatches batches({tokens}, opened.context, /*batch_size=*/1);
  DepthWeightAverage average(*opened.model);
  const at::NoGradGuard no_grad;
  for (int64_t i = 0; i < batches.size(); ++i) {
    opened.model->hidden(batches[i].inputs_BT, {.observer = &average});
  }
  return average.sites();
}

Measured measure(const InspectOptions& options, const OpenedModel& opened) {
  const auto tokenizer =
      options.data.empty() && !options.text ? opened.tokenizer_or_ids() : opened.tokenizer();
  const std::vector<int32_t> text = text_to_inspect(options, opened, *tokenizer);
  require(text.size() >= 2 ||
              !(options.wants_weights() || options.wants_matrix() || options.wants_effects()),
          "inspect: the text has {}; give at least 2, of which the last is only predicted",
          counted(std::ssize(text), "token"));
  const auto beginning = [&](int64_t usual) {
    const int64_t most = options.max_tokens > 0 ? options.max_tokens : usual;
    return std::vector<int32_t>(text.begin(),
                                text.begin() + std::min<int64_t>(std::ssize(text), most));
  };
  Measured measured;
  if (options.wants_tokens()) {
    measured.tokens = measure_tokens(opened, *tokenizer, beginning(kShownTokens), options.sites);
  }
  if (options.wants_weights()) measured.sites = measure_weights(opened, beginning(kWeightsTokens));
  if (options.wants_matrix()) {
    measured.matrices = measure_matrices(opened, beginning(kWeightsTokens));
  }
  if (options.wants_effects()) {
    measured.effects = measure_effects(opened, *tokenizer, beginning(kEffectsTokens));
  }
  return measured;
}

Json to_json(const std::vector<MixingMatrix>& matrices) {
  Json list = Json::array();
  for (const MixingMatrix& matrix : matrices) {
    list.push_back({{"stream", matrix.stream},
                    {"mean", matrix.mean},
                    {"semiseparable_rank", semiseparable_rank(matrix.mean)},
                    {"semiseparable_rank_of_samples", rank_of_samples(matrix)}});
  }
  return list;
}

void print_json(const InspectOptions& options, const OpenedModel& opened, const Json& parameters,
                const Measured& measured) {
  Json json = {{"model", write_config(opened.model->config())},
               {"vocab_size", opened.model->vocab_size()},
               {"context", opened.context},
               {"parameters", parameters}};
  if (options.wants_weights()) json["sites"] = to_json(measured.sites);
  if (const auto summary = summarize(measured.sites)) {
    json["embedding_share"] = summary->embedding_share;
    if (summary->own_block) {
      json["inter_block"] = 1 - *summary->own_block;
      json["intra_block"] = *summary->own_block;
    }
  }
  if (options.wants_matrix()) json["mixing_matrices"] = to_json(measured.matrices);
  if (measured.tokens) json["tokens"] = to_json(*measured.tokens);
  if (measured.effects) add_effects(json, *measured.effects);
  fmt::print("{}\n", json.dump());
}

void print_text(const InspectOptions& options, const OpenedModel& opened, const Json& parameters,
                const Measured& measured, const std::vector<std::filesystem::path>& drawings) {
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
    print_model(opened, parameters);
    if (options.measures()) {
      begin_part();
      measured.sites.empty() ? say_without_weights() : print_depth_weights(measured.sites);
    }
  }
  if (options.all || options.matrix) {
    begin_part();
    print_matrices(measured.matrices);
  }
  if (options.tokens) {
    begin_part();
    measured.tokens->sites.empty() ? say_without_weights() : print_tokens(*measured.tokens);
  }
  if (measured.effects) {
    begin_part();
    print_effects(*measured.effects);
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
  const OpenedModel opened = open_model(options.model);
  const Json parameters = count_parameters(*opened.model);
  Measured measured;
  if (options.measures()) measured = measure(options, opened);
  std::vector<std::filesystem::path> drawings;
  if (!options.draw_matrix.empty()) {
    drawings = draw_matrices(measured.matrices, options.model.path, options.draw_matrix);
  }
  if (!options.draw_tokens.empty()) {
    require(!measured.tokens->sites.empty(), "--draw-tokens: {} has no depth weights",
            opened.model->config().depth_mixing.name());
    draw_tokens(*measured.tokens, options.draw_tokens);
    drawings.emplace_back(options.draw_tokens);
  }
  options.json ? print_json(options, opened, parameters, measured)
               : print_text(options, opened, parameters, measured, drawings);
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "inspect",
      "Show a model's configuration and parameters; with text, where each of its sites looks:\n"
      "the depth weights, averaged over tokens, and their entropy in nats.");
  const auto options = std::make_shared<InspectOptions>();
  options->model.add_to(*command);
  CLI::Option* data =
      as_path(command->add_option("--data", options->data, "files and folders of text"))
          ->type_name("PATH");
  command
      ->add_option("--text", options->text,
                   "in place of --data: the text itself; standard input if -")
      ->type_name("TEXT")
      ->excludes(data);
  command
      ->add_option("--ids", options->ids_text,
                   "in place of a text: token ids, separated by commas, which need no tokenizer")
      ->type_name("IDS")
      ->excludes(data)
      ->excludes("--text");
  command
      ->add_option("--max-tokens", options->max_tokens,
                   fmt::format("of the text, only the first N tokens; if not given, {}, for "
                               "effects {}, token by token {}",
                               kWeightsTokens, kEffectsTokens, kShownTokens))
      ->type_name("N")
      ->check(whole_number(2));
  command->add_flag("--matrix", options->matrix,
                    "print the depth mixing matrix and its semiseparable rank");
  as_path(command->add_option("--draw-matrix", options->draw_matrix, "draw it into this SVG file"))
      ->type_name("FILE");
  command->add_flag("--tokens", options->tokens,
                    "print the depth weights token by token, averaged over sites");
  as_path(command->add_option("--draw-tokens", options->draw_tokens,
                              "draw them, a panel a site, into this SVG file"))
      ->type_name("FILE");
  command
      ->add_option("--site", options->sites,
                   "of these, only the sites with these names, such as 'attention 2' and output")
      ->type_name("NAME");
  command->add_flag("--effects", options->effects,
                    "print what the loss gains without each layer, sublayer and source; "
                    "magnitudes; how alike the sources are; depth weights by position and by "
                    "class of token");
  command->add_flag("--all", options->all,
                    "depth weights, --matrix and --effects; as --matrix, --tokens and --effects "
                    "do, of a run's held-out text where --model is a run's folder and no other "
                    "text is given");
  command->add_flag("--json", options->json, "print JSON");
  options->machine.add_to(*command);
  command->footer(
      "Examples:\n"
      "  attnres inspect --model runs/tiny\n"
      "  attnres inspect --model runs/tiny --all\n"
      "  attnres inspect --model runs/tiny --data book.txt --draw-matrix matrix.svg\n"
      "  attnres inspect --model runs/tiny --tokens --text 'To be, or not to be'\n"
      "  attnres inspect --model runs/tiny --draw-tokens tokens.svg --site 'attention 2' output");
  command->callback([options] { run_inspect(*options); });
}

}  // namespace attnres
