// The inspect subcommand: what matters, and how much.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "app/inspect.h"
#include "attnres/data/evaluation_batches.h"
#include "attnres/infer/evaluate.h"
#include "attnres/support/format.h"
#include "attnres/support/progress.h"
#include "attnres/support/terminal.h"
#include "attnres/text/ids.h"
#include "attnres/text/token_class.h"

namespace attnres {
namespace {

// The group of each token of a batch, [B * T], by its id and its position.
at::Tensor groups_of(const at::Tensor& ids_BT,
                     const std::function<int64_t(int64_t id, int64_t position)>& group) {
  const at::Tensor ids = ids_BT.contiguous();
  at::Tensor groups = at::empty({ids.numel()}, at::kLong);
  for (int64_t i = 0; i < ids.numel(); ++i) {
    groups.mutable_data_ptr<int64_t>()[i] =
        group(ids.const_data_ptr<int64_t>()[i], i % ids.size(1));
  }
  return groups;
}

std::vector<std::string> bucket_names(int64_t context) {
  std::vector<std::string> names;
  for (int64_t bucket = 0; bucket <= position_bucket(context); ++bucket) {
    names.push_back(position_bucket_name(bucket));
  }
  return names;
}

// Both groupings in one pass.
class BothGroupings : public RunObserver {
 public:
  BothGroupings(const Transformer& model, int64_t context)
      : by_position(model, bucket_names(context)),
        by_class(model, {kTokenClassNames.begin(), kTokenClassNames.end()}) {}

  void on_read(int site, const ReadTrace& trace) override {
    by_position.on_read(site, trace);
    by_class.on_read(site, trace);
  }

  GroupedDepthWeights by_position, by_class;
};

void measure_groups(const OpenedModel& opened, const Tokenizer& tokenizer,
                    const EvaluationBatches& batches, InspectedEffects& effects) {
  const at::NoGradGuard no_grad;
  BothGroupings seen(*opened.model, opened.context);
  for (int64_t i = 0; i < batches.size(); ++i) {
    const at::Tensor ids_BT = batches[i].inputs_BT;
    seen.by_position.set_groups(
        groups_of(ids_BT, [](int64_t, int64_t position) { return position_bucket(position); }));
    seen.by_class.set_groups(groups_of(ids_BT, [&](int64_t id, int64_t) {
      const bool has_text = id < tokenizer.vocab_size();
      return static_cast<int64_t>(
          token_class(has_text ? tokenizer.token_text(static_cast<int32_t>(id)) : ""));
    }));
    opened.model->hidden(ids_BT, {.observer = &seen});
  }
  effects.by_position = seen.by_position.groups();
  // Tokens without texts are of no class.
  if (tokenizer.kind() != kIds) effects.by_token_class = seen.by_class.groups();
}

Json to_json(const std::vector<DepthWeightGroup>& groups) {
  Json list = Json::array();
  for (const DepthWeightGroup& group : groups) {
    list.push_back(
        {{"name", group.name}, {"tokens", group.tokens}, {"sites", to_json(group.sites)}});
  }
  return list;
}

void print_drops(const DropEffects& drops) {
  fmt::print(
      "what the loss gains without a part, nats a token ({:.4f} with all)\n\n"
      "layer         both   attention  feed-forward\n",
      drops.loss);
  for (size_t layer = 0; layer < drops.layers.size(); ++layer) {
    fmt::print("{:5}  {:>+11.4f} {:>+11.4f}   {:>+11.4f}\n", layer + 1, drops.layers[layer],
               drops.sublayers[2 * layer], drops.sublayers[2 * layer + 1]);
  }
  fmt::print("\neffective depth  {:.2f} of {}\n", effective_depth(drops.layers),
             counted(std::ssize(drops.layers), "layer"));
  if (drops.sources.empty()) return;
  fmt::print("\nsource, where others are left\n");
  for (const DropEffects::Source& source : drops.sources) {
    fmt::print("  {:16}{:>+9.4f}\n", source.name, source.change);
  }
}

void print_magnitudes(const Magnitudes& magnitudes) {
  const int sublayers = static_cast<int>(magnitudes.output.size());
  fmt::print("\nroot mean squares     output       state    gradient\n");
  for (int site = 0; site < sublayers; ++site) {
    fmt::print("{:16}{:>12.4g}{:>12.4g}{:>12.4g}\n", site_name(site, sublayers),
               magnitudes.output[site], magnitudes.state[site], magnitudes.gradient[site]);
  }
}

void print_similarity(const SourceSimilarity& similarity) {
  constexpr size_t kName = 14, kNumber = 6;
  const size_t size = similarity.sources.size();
  fmt::print("\ncosine similarity of the sources, mean over tokens\n\n");
  if (kName + kNumber * size > text_columns()) {
    fmt::print("{0} by {0} numbers are too wide for this terminal; --json has them\n", size);
    return;
  }
  fmt::print("{:{}}", "", kName);
  for (const std::string& source : similarity.sources) {
    fmt::print("{:>{}}", initial_and_number(source), kNumber);
  }
  fmt::print("\n");
  for (size_t i = 0; i < size; ++i) {
    fmt::print("{:{}}", similarity.sources[i], kName);
    for (size_t j = 0; j <= i; ++j) fmt::print("{:>{}.2f}", similarity.cosine[i][j], kNumber);
    fmt::print("\n");
  }
}

// A row a group.
void print_groups(const std::string& title, const std::vector<DepthWeightGroup>& groups) {
  if (groups.empty()) return;
  std::vector<std::string> names;
  std::vector<TokenDepthWeights> rows;  // by site, a row a group
  for (const DepthWeightGroup& group : groups) {
    names.push_back(fmt::format("{:13}{:>7}", group.name, group.tokens));
    rows.resize(group.sites.size());
    for (size_t i = 0; i < group.sites.size(); ++i) {
      const SiteDepthWeights& site = group.sites[i];
      rows[i].site = site.site;
      rows[i].sources = site.sources;
      rows[i].weights.push_back(site.weights);
    }
  }
  fmt::print("\n");
  print_heat(fmt::format("depth weights by {}, with the number of tokens", title),
             mean_over_sites(rows), names);
}

}  // namespace

InspectedEffects measure_effects(const OpenedModel& opened, const Tokenizer& tokenizer,
                                 const std::vector<int32_t>& tokens) {
  const Transformer& model = *opened.model;
  InspectedEffects effects;
  ProgressLine progress;
  effects.drops =
      measure_drop_effects(model, tokens, opened.context, [&](int64_t done, int64_t total) {
        progress.update(fmt::format("{}/{} parts left out", done, total));
      });
  progress.finish();
  const EvaluationBatches batches({tokens}, opened.context,
                                  std::max<int64_t>(kEvaluationTokensABatch / opened.context, 1));
  const Batch first = batches[0];
  effects.magnitudes = measure_magnitudes(model, first.inputs_BT, first.targets_BT);
  SourceSimilarityAverage similarity(model);
  const EvaluationBatches windows({tokens}, opened.context, /*batch_size=*/1);
  for (int64_t i = 0; i < windows.size(); ++i) similarity.add(windows[i].inputs_BT);
  effects.similarity = similarity.similarity();
  measure_groups(opened, tokenizer, batches, effects);
  return effects;
}

void add_effects(Json& json, const InspectedEffects& effects) {
  const int sublayers = static_cast<int>(effects.drops.sublayers.size());
  Json layers = Json::array(), by_site = Json::array(), sources = Json::array();
  for (size_t layer = 0; layer < effects.drops.layers.size(); ++layer) {
    layers.push_back({{"layer", layer + 1}, {"change", effects.drops.layers[layer]}});
  }
  for (int site = 0; site < sublayers; ++site) {
    by_site.push_back({{"site", site},
                       {"name", site_name(site, sublayers)},
                       {"change", effects.drops.sublayers[site]}});
  }
  for (const DropEffects::Source& source : effects.drops.sources) {
    sources.push_back({{"name", source.name}, {"change", source.change}});
  }
  json["effects"] = {{"loss", effects.drops.loss},
                     {"layers", std::move(layers)},
                     {"sublayers", std::move(by_site)}};
  if (!sources.empty()) json["effects"]["sources"] = std::move(sources);
  json["effective_depth"] = effective_depth(effects.drops.layers);
  json["magnitudes"] = {{"output_rms", effects.magnitudes.output},
                        {"state_rms", effects.magnitudes.state},
                        {"gradient_rms", effects.magnitudes.gradient}};
  json["similarity"] = {{"sources", effects.similarity.sources},
                        {"cosine", effects.similarity.cosine}};
  if (!effects.by_position.empty()) json["by_position"] = to_json(effects.by_position);
  if (!effects.by_token_class.empty()) json["by_token_class"] = to_json(effects.by_token_class);
}

void print_effects(const InspectedEffects& effects) {
  print_drops(effects.drops);
  print_magnitudes(effects.magnitudes);
  print_similarity(effects.similarity);
  print_groups("position", effects.by_position);
  print_groups("token class", effects.by_token_class);
}

}  // namespace attnres
