// The inspect subcommand.
#include <ATen/core/grad_mode.h>
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "app/commands.h"
#include "app/mixing_matrix.h"
#include "app/options.h"
#include "attnres/model/depth_weights.h"
#include "attnres/model/layer_kind.h"
#include "attnres/model/model_mixing_matrix.h"
#include "attnres/support/config.h"
#include "attnres/support/json.h"
#include "attnres/text/batches.h"

namespace attnres {
namespace {

struct InspectOptions {
  ModelOption model;
  MachineOptions machine;
  std::vector<std::string> data;
  int64_t max_tokens = 8192;
  bool matrix = false;
  std::string draw_matrix;
  bool json = false;
};

// The parts of a model that its parameters belong to.
class Parts {
 public:
  explicit Parts(const ModelConfig& config)
      : mixing_(at::kFloat, /*seed=*/std::nullopt, at::kMeta) {
    config.depth_mixing.make_mixer(config.mixer_shape(), mixing_);
  }

  const char* operator()(const Parameter& parameter) const {
    if (parameter.kind == ParameterKind::embedding) return "embedding";
    if (parameter.kind == ParameterKind::head) return "head";
    if (parameter.role == "input_norm") return "norms";
    if (mixing_.find(parameter.site, parameter.role) != nullptr) return "depth mixing";
    return parameter.site % 2 == 0 ? "attention" : "feed-forward";
  }

 private:
  ParameterRegistry mixing_;  // the mixer's own, without values
};

// The configuration without what this model does not use.
Json used_settings(const ModelConfig& config) {
  Json used = write_config(config);
  std::set<std::string> unused, read;
  for (const std::vector<LayerKind>* kinds : {&attention_kinds(), &feed_forward_kinds()}) {
    for (const LayerKind& kind : *kinds) {
      (kind.is_in(config) ? read : unused).insert(kind.keys.begin(), kind.keys.end());
    }
  }
  for (const std::string& key : unused) {
    if (!read.contains(key)) used.erase(key);
  }
  if (!config.activation.is_situ()) used["activation"] = {{"type", "silu"}};
  return used;
}

// Numbers in each part, and in all.
Json count_parameters(const Transformer& model) {
  Json counts;
  for (const char* part :
       {"embedding", "attention", "feed-forward", "norms", "depth mixing", "head"}) {
    counts[part] = 0;
  }
  const Parts part_of(model.config());
  for (const Parameter& parameter : model.parameters().all()) {
    Json& count = counts[part_of(parameter)];
    count = count.get<int64_t>() + parameter.tensor.numel();
  }
  counts["total"] = model.parameters().count();
  return counts;
}

std::vector<int32_t> first_tokens(const OpenedModel& opened, const InspectOptions& options) {
  const auto tokenizer = opened.tokenizer();
  std::vector<int32_t> tokens = tokens_of(options.data, *tokenizer);
  tokens.resize(std::min<size_t>(tokens.size(), options.max_tokens));
  return tokens;
}

// On one window of the text.
std::vector<MixingMatrix> measure_matrices(const OpenedModel& opened,
                                           const std::vector<int32_t>& tokens) {
  constexpr int64_t kMostTokens = 512;
  const EvaluationBatches batches(tokens, std::min(opened.context, kMostTokens), /*batch_size=*/1);
  return mixing_matrices(*opened.model, batches[0].inputs_BT);
}

std::vector<SiteDepthWeights> measure(const OpenedModel& opened,
                                      const std::vector<int32_t>& tokens) {
  const EvaluationBatches batches(tokens, opened.context, /*batch_size=*/1);
  DepthWeightAverage average(*opened.model);
  const at::NoGradGuard no_grad;
  for (int64_t i = 0; i < batches.size(); ++i) {
    opened.model->hidden(batches[i].inputs_BT, {.observer = &average});
  }
  return average.sites();
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

Json to_json(const std::vector<SiteDepthWeights>& sites) {
  Json list = Json::array();
  for (const SiteDepthWeights& site : sites) {
    list.push_back({{"site", site.site},
                    {"name", site.name},
                    {"sources", site.sources},
                    {"weights", site.weights},
                    {"entropy", site.entropy}});
  }
  return list;
}

// All sources in the order in which they first appear; the partial sum, which is another one in
// each block, last.
std::vector<std::string> columns_of(const std::vector<SiteDepthWeights>& sites) {
  std::vector<std::string> columns;
  bool partial = false;
  for (const SiteDepthWeights& site : sites) {
    for (const std::string& source : site.sources) {
      if (source == "partial sum") {
        partial = true;
      } else if (std::find(columns.begin(), columns.end(), source) == columns.end()) {
        columns.push_back(source);
      }
    }
  }
  if (partial) columns.push_back("partial sum");
  return columns;
}

// "block 12" as "b12", "embedding" as "e".
std::string initial_and_number(const std::string& name) {
  const size_t space = name.rfind(' ');
  const bool numbered = space != std::string::npos && std::isdigit(name.back());
  return name.substr(0, 1) + (numbered ? name.substr(space + 1) : "");
}

void print_table(const std::vector<SiteDepthWeights>& sites) {
  const std::vector<std::string> columns = columns_of(sites);
  size_t width = 0;
  for (const std::string& column : columns) width += std::max<size_t>(column.size(), 5) + 2;
  const bool wide = width > 80;

  std::vector<std::string> headings = columns;
  if (wide) {
    for (std::string& heading : headings) heading = initial_and_number(heading);
  }
  const auto cell_width = [&](size_t i) { return std::max<size_t>(headings[i].size(), 4) + 2; };

  fmt::print("mean depth weights (rows: sites; columns: sources");
  if (wide)
    fmt::print(", {} = {} to {} = {}", headings[0], columns[0], headings.back(), columns.back());
  fmt::print(")\n\n{:16}", "");
  for (size_t i = 0; i < headings.size(); ++i) fmt::print("{:>{}}", headings[i], cell_width(i));
  fmt::print("  entropy  dominant\n");
  for (const SiteDepthWeights& site : sites) {
    fmt::print("{:16}", site.name);
    for (size_t i = 0; i < columns.size(); ++i) {
      const auto& sources = site.sources;
      const bool has = std::find(sources.begin(), sources.end(), columns[i]) != sources.end();
      fmt::print("{:>{}}", has ? fmt::format("{:.2f}", site.mass(columns[i])) : "", cell_width(i));
    }
    fmt::print("  {:7.3f}  {}\n", site.entropy, site.sources[site.dominant()]);
  }

  const std::optional<DepthWeightSummary> summary = summarize(sites);
  if (!summary) return;
  fmt::print("\nshare of the embedding  {:.3f}  (mean over the sites with two sources or more)\n",
             summary->embedding_share);
  if (summary->own_block) {
    fmt::print("earlier blocks          {:.3f}\n", 1 - *summary->own_block);
    fmt::print("own block               {:.3f}  (mean over the sites inside a block)\n",
               *summary->own_block);
  }
}

void run_inspect(const InspectOptions& options) {
  options.machine.apply();
  const OpenedModel opened = open_model(options.model);
  const Transformer& model = *opened.model;
  const Json config = write_config(model.config());
  const Json parameters = count_parameters(model);
  const bool wants_matrix = options.matrix || !options.draw_matrix.empty();
  require_usage(!wants_matrix || !options.data.empty(),
                "--matrix and --draw-matrix are measured on a text: give it with --data");
  std::vector<SiteDepthWeights> sites;
  std::vector<MixingMatrix> matrices;
  if (!options.data.empty()) {
    const std::vector<int32_t> tokens = first_tokens(opened, options);
    sites = measure(opened, tokens);
    if (wants_matrix) matrices = measure_matrices(opened, tokens);
  }
  if (!options.draw_matrix.empty()) draw_matrices(matrices, options.draw_matrix);

  if (options.json) {
    Json json = {{"model", config},
                 {"vocab_size", model.vocab_size()},
                 {"context", opened.context},
                 {"parameters", parameters}};
    if (!options.data.empty()) json["sites"] = to_json(sites);
    if (const auto summary = summarize(sites)) {
      json["embedding_share"] = summary->embedding_share;
      if (summary->own_block) {
        json["inter_block"] = 1 - *summary->own_block;
        json["intra_block"] = *summary->own_block;
      }
    }
    if (wants_matrix) json["mixing_matrices"] = to_json(matrices);
    fmt::print("{}\n", json.dump());
    return;
  }

  fmt::print("{}\n\n", opened.folder.string());
  const Json used = used_settings(model.config());
  for (const auto& [key, value] : used.items()) {
    fmt::print("{:18}{}\n", key, value.dump());
  }
  fmt::print("{:18}{}\n{:18}{}\n\nparameters\n", "vocab_size", model.vocab_size(), "context",
             opened.context);
  for (const auto& [part, count] : parameters.items()) {
    const auto n = count.get<int64_t>();
    fmt::print("  {:14}{:>13}  {:5.1f} %\n", part, n,
               100.0 * static_cast<double>(n) / static_cast<double>(model.parameters().count()));
  }
  if (options.data.empty()) return;
  fmt::print("\n");
  if (sites.empty()) {
    fmt::print("{} has no depth weights\n", model.config().depth_mixing.name());
  } else {
    print_table(sites);
  }
  if (options.matrix) {
    fmt::print("\n");
    print_matrices(matrices);
  }
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "inspect",
      "Show a model's configuration and parameters; with text, where each of its sites looks:\n"
      "the depth weights, averaged over tokens, and their entropy in nats.");
  const auto options = std::make_shared<InspectOptions>();
  options->model.add_to(*command);
  as_path(command->add_option("--data", options->data, "files and folders of text"))
      ->type_name("PATH");
  command->add_option("--max-tokens", options->max_tokens, "of the text, only the first N tokens")
      ->type_name("N")
      ->check(whole_number(2))
      ->capture_default_str();
  command->add_flag("--matrix", options->matrix,
                    "print the depth mixing matrix and its semiseparable rank");
  as_path(command->add_option("--draw-matrix", options->draw_matrix, "draw it into this SVG file"))
      ->type_name("FILE");
  command->add_flag("--json", options->json, "print JSON");
  options->machine.add_to(*command);
  command->footer(
      "Examples:\n"
      "  attnres inspect --model runs/tiny\n"
      "  attnres inspect --model runs/tiny --data book.txt\n"
      "  attnres inspect --model runs/tiny --data book.txt --draw-matrix matrix.svg");
  command->callback([options] { run_inspect(*options); });
}

}  // namespace attnres
