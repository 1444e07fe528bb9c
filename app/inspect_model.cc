// The inspect subcommand: the model itself.
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <set>

#include "app/inspect.h"
#include "attnres/layers/latent_attention.h"
#include "attnres/model/layer_kind.h"
#include "attnres/support/config.h"
#include "attnres/support/terminal.h"

namespace attnres {
namespace {

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
  Json& activation = used["activation"];
  const std::string& type = config.activation.type;
  for (const auto& [key, of] :
       {std::pair("beta", "situ"), {"linear_beta", "situ"}, {"limit", "swiglu_oai"}}) {
    if (type != of) activation.erase(key);
  }
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

void print_model(const std::filesystem::path& path, const Inspection& inspection) {
  constexpr size_t kKeys = 18;
  fmt::print("{}\n\n", path.string());
  const Json used = used_settings(*inspection.model);
  for (const auto& [key, value] : used.items()) {
    fmt::print("{:{}}{}\n", key, kKeys, wrapped(setting_text(value), text_columns(), kKeys));
  }
  fmt::print("{0:{4}}{1}\n{2:{4}}{3}\n\nparameters\n", "vocab_size", inspection.vocab_size,
             "context", inspection.context, kKeys);
  const auto total = static_cast<double>(inspection.parameters.back().second);
  for (const auto& [part, count] : inspection.parameters) {
    fmt::print("  {:14}{:>13}  {:5.1f} %\n", part, count,
               100.0 * static_cast<double>(count) / total);
  }
}

}  // namespace attnres
