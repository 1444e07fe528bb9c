#include "attnres/model/attention_kinds.h"

#include <fmt/ranges.h>

#include "attnres/layers/attention.h"
#include "attnres/layers/delta_attention.h"
#include "attnres/layers/latent_attention.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

AttentionKind grouped_query() {
  const auto resolve = [](const ModelConfig& config, const std::string& path) {
    require_usage(config.width % config.heads == 0, "{}.width: {} is not divisible by {} heads",
                  path, config.width, config.heads);
    require_usage(config.width / config.heads % 2 == 0,
                  "{}.heads: rotary positions need an even head width, {} / {} is {}", path,
                  config.width, config.heads, config.width / config.heads);
  };
  const auto make = [](const ModelConfig& config, const SublayerNeeds& needs, int site,
                       ParameterRegistry& parameters) -> std::unique_ptr<Sublayer> {
    const AttentionShape shape = {.width = config.width,
                                  .heads = config.heads,
                                  .kv_heads = config.kv_heads,
                                  .head_width = config.width / config.heads,
                                  .rope_theta = config.rope_theta,
                                  .init_std = config.init_std,
                                  .needs = needs};
    return std::make_unique<Attention>(shape, site, parameters);
  };
  return {kGroupedQuery, {"heads", "kv_heads", "rope_theta"}, "", resolve, make};
}

AttentionKind delta() {
  const auto resolve = [](ModelConfig& config, const std::string& path) {
    config.delta_attention.resolve(config.width, config.heads, path + ".delta_attention");
  };
  const auto make = [](const ModelConfig& config, const SublayerNeeds& needs, int site,
                       ParameterRegistry& parameters) -> std::unique_ptr<Sublayer> {
    return std::make_unique<DeltaAttention>(config.delta_attention, config.width, config.norm_eps,
                                            config.init_std, needs, site, parameters);
  };
  return {kDelta, {"delta_attention"}, "delta_attention", resolve, make};
}

AttentionKind latent() {
  const auto resolve = [](ModelConfig& config, const std::string& path) {
    config.latent_attention.resolve(config.width, config.heads, path + ".latent_attention");
  };
  const auto make = [](const ModelConfig& config, const SublayerNeeds& needs, int site,
                       ParameterRegistry& parameters) -> std::unique_ptr<Sublayer> {
    return std::make_unique<LatentAttention>(config.latent_attention, config.width, config.heads,
                                             config.init_std, needs, site, parameters);
  };
  return {kLatent, {"heads", "latent_attention"}, "latent_attention", resolve, make};
}

}  // namespace

const std::vector<AttentionKind>& attention_kinds() {
  static const std::vector<AttentionKind> all = {grouped_query(), delta(), latent()};
  return all;
}

const AttentionKind& find_attention_kind(const std::string& name, const std::string& path) {
  std::vector<std::string> names;
  for (const AttentionKind& kind : attention_kinds()) {
    if (kind.name == name) return kind;
    names.push_back(kind.name);
  }
  const std::string last = names.back();
  names.pop_back();
  fail_usage("{}.attention: expected {} or {}, got {}", path, fmt::join(names, ", "), last, name);
}

}  // namespace attnres
