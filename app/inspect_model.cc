// The inspect subcommand: the model itself.
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <set>

#include "app/inspect.h"
#include "attnres/layers/latent_attention.h"
#include "attnres/model/layer_kind.h"
#include "attnres/support/config.h"
#include "attnres/support/mixer_parameters.h"
#include "attnres/support/terminal.h"

namespace attnres {
namespace {

// The part of a model that a parameter belongs to.
const char* part_of(const ParameterRegistry& parameters, const Parameter& parameter) {
  if (parameter.kind == ParameterKind::embedding) return "embedding";
  if (parameter.kind == ParameterKind::head) return "head";
  if (parameter.role == "input_norm" || parameter.role == "output_norm") return "norms";
  if (is_of_mixer(parameters, parameter)) return "depth mixing";
  return parameter.site % 2 == 0 ? "attention" : "feed-forward";
}

// The configuration without what this model does not use.
Json used_settings(const ModelConfig& config) {
  Json used = write_config(config);
  std::set<std::string> unused, read;
  for (const LayerKind* kind : all_kinds()) {
    (kind->is_in(config) ? read : unused).insert(kind->keys.begin(), kind->keys.end());
  }
  for (const std::string& key : unused) {
    if (!read.contains(key)) used.erase(key);
  }
  if (!config.activation.is_situ()) used["activation"] = {{"type", config.activation.type}};
  if (!config.has_grouped_query() && !config.settings<LatentAttentionSettings>().rotary) {
    for (const char* of_positions : {"rope_theta", "rope_scaling"}) used.erase(of_positions);
  }
  const Json defaults = write_config(ModelConfig());
  for (const char* rare : {"grouped_query", "output_norm", "rope_scaling", "embedding_scale"}) {
    if (used.contains(rare) && used[rare] == defaults[rare]) used.erase(rare);
  }
  return used;
}

// On one line, with spaces where it may be broken.
std::string setting_text(const Json& value) {
  if (!value.is_object()) return value.dump();
  std::string text;
  for (const auto& [key, part] : value.items()) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ", ", Json(key).dump(), part.dump());
  }
  return "{" + text + "}";
}

}  // namespace

Json count_parameters(const Transformer& model) {
  Json counts;
  for (const char* part :
       {"embedding", "attention", "feed-forward", "norms", "depth mixing", "head"}) {
    counts[part] = 0;
  }
  for (const Parameter& parameter : model.parameters().all()) {
    Json& count = counts[part_of(model.parameters(), parameter)];
    count = count.get<int64_t>() + parameter.tensor.numel();
  }
  counts["total"] = model.parameters().count();
  return counts;
}

void print_model(const OpenedModel& opened, const Json& parameters) {
  constexpr size_t kKeys = 18;
  const Transformer& model = *opened.model;
  fmt::print("{}\n\n", opened.directory.path().string());
  const Json used = used_settings(model.config());
  for (const auto& [key, value] : used.items()) {
    fmt::print("{:{}}{}\n", key, kKeys, wrapped(setting_text(value), text_columns(), kKeys));
  }
  fmt::print("{0:{4}}{1}\n{2:{4}}{3}\n\nparameters\n", "vocab_size", model.vocab_size(), "context",
             opened.context, kKeys);
  for (const auto& [part, count] : parameters.items()) {
    const auto n = count.get<int64_t>();
    fmt::print("  {:14}{:>13}  {:5.1f} %\n", part, n,
               100.0 * static_cast<double>(n) / static_cast<double>(model.parameters().count()));
  }
}

}  // namespace attnres
