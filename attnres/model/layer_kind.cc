#include "attnres/model/layer_kind.h"

#include <algorithm>
#include <optional>

#include "attnres/layers/experts.h"
#include "attnres/layers/feed_forward.h"
#include "attnres/model/layer_kinds/layer_kinds.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

const LayerKind* find_kind(const std::vector<LayerKind>& kinds, const std::string& name) {
  const auto found = std::find_if(kinds.begin(), kinds.end(),
                                  [&](const LayerKind& kind) { return kind.name == name; });
  return found == kinds.end() ? nullptr : &*found;
}

// What cannot be shared out equally, if there is anything.
std::optional<std::pair<std::string, int64_t>> find_unequal(const ModelConfig& config,
                                                            int64_t parts) {
  for (const LayerKind* kind : all_kinds()) {
    if (!kind->is_in(config)) continue;
    for (const auto& [key, number] : kind->shared_out(config)) {
      if (number % parts != 0) return std::pair(key, number);
    }
  }
  return std::nullopt;
}

}  // namespace

HuggingFaceNames weights_in(const std::string& prefix, const std::vector<std::string>& roles) {
  HuggingFaceNames names;
  for (const std::string& role : roles) names[role] = prefix + role + ".weight";
  return names;
}

const std::vector<LayerKind>& attention_kinds() {
  static const std::vector<LayerKind> all = {grouped_query_kind(), sliding_window_kind(),
                                             nope_kind(), delta_kind(), latent_kind()};
  return all;
}

const std::vector<LayerKind>& feed_forward_kinds() {
  static const std::vector<LayerKind> all = {dense_kind(), experts_kind()};
  return all;
}

std::vector<const LayerKind*> all_kinds() {
  std::vector<const LayerKind*> all;
  for (const LayerKind& kind : attention_kinds()) all.push_back(&kind);
  for (const LayerKind& kind : feed_forward_kinds()) all.push_back(&kind);
  return all;
}

const LayerKind& layer_kind(const ModelConfig& config, int site) {
  const int64_t layer = site / 2;
  if (site % 2 == 0) {
    const std::string& name = config.attention_of(layer);
    const LayerKind* kind = find_kind(attention_kinds(), name);
    require_usage(kind != nullptr, "model.attention: there is no kind {}", one_line(name));
    return *kind;
  }
  return *find_kind(feed_forward_kinds(), config.has_experts(layer) ? kExperts : kDense);
}

bool has_equal_parts(const ModelConfig& config, int64_t parts) {
  return !find_unequal(config, parts).has_value();
}

void require_equal_parts(const ModelConfig& config, int64_t parts) {
  const auto unequal = find_unequal(config, parts);
  if (!unequal) return;
  fail_usage(
      "model.{}: {} cannot be shared out equally to the {} processes of a tensor group; choose a "
      "number of them that divides it (parallel.tensor in training)",
      unequal->first, unequal->second, parts);
}

}  // namespace attnres
