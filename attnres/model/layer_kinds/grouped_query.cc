#include "attnres/layers/attention.h"
#include "attnres/model/layer_kinds/layer_kinds.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// What all three kinds have in common is read once, by the first.
void resolve_grouped_query(ModelConfig& config, const std::string& path) {
  if (config.head_width == 0) {
    require_usage(config.width % config.heads == 0,
                  "{}.width: {} is not divisible by {} heads; give a head_width", path,
                  config.width, config.heads);
    config.head_width = config.width / config.heads;
  }
  require_usage(config.head_width % 2 == 0,
                "{}.head_width: rotary positions need an even one, got {}", path,
                config.head_width);
}

// All but its positions and its window.
AttentionShape shape_of_heads(const ModelConfig& config) {
  return {.heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_width = config.head_width,
          .settings = config.settings<GroupedQuerySettings>()};
}

RotaryFrequencies frequencies_of(const ModelConfig& config) {
  return scaled_frequencies(config.head_width, config.rope_theta, config.rope_scaling);
}

std::unique_ptr<Sublayer> make_grouped_query(const ModelConfig& config, const LayerPlace& place,
                                             ParameterRegistry& parameters) {
  AttentionShape shape = shape_of_heads(config);
  shape.rotary = frequencies_of(config);
  return std::make_unique<Attention>(shape, place, parameters);
}

std::unique_ptr<Sublayer> make_sliding_window(const ModelConfig& config, const LayerPlace& place,
                                              ParameterRegistry& parameters) {
  const auto& settings = config.settings<SlidingWindowSettings>();
  AttentionShape shape = shape_of_heads(config);
  shape.rotary = settings.rope_theta > 0
                     ? rotary_frequencies(config.head_width, settings.rope_theta)
                     : frequencies_of(config);
  shape.window = settings.window;
  return std::make_unique<Attention>(shape, place, parameters);
}

std::unique_ptr<Sublayer> make_nope(const ModelConfig& config, const LayerPlace& place,
                                    ParameterRegistry& parameters) {
  return std::make_unique<Attention>(shape_of_heads(config), place, parameters);
}

HuggingFaceNames grouped_query_in_hugging_face() {
  HuggingFaceNames names = weights_in("self_attn.", {"q_proj", "k_proj", "v_proj", "o_proj"});
  for (const std::string map : {"q", "k", "v"}) {
    names[map + "_bias"] = "self_attn." + map + "_proj.bias";
  }
  for (const std::string map : {"q", "k"}) {
    names[map + "_layernorm"] = "self_attn." + map + "_norm.weight";
  }
  names["o_bias"] = "self_attn.o_proj.bias";
  names["sinks"] = "self_attn.sinks";
  return names;
}

}  // namespace

LayerKind grouped_query_kind() {
  return {
      .name = kGroupedQuery,
      .keys = {"heads", "kv_heads", "head_width", "grouped_query", "rope_theta", "rope_scaling"},
      .settings = settings_under<GroupedQuerySettings>(
          "grouped_query", "of grouped-query attention, in windows and without positions too"),
      .missing = "grouped_query attention",
      .is_in = [](const ModelConfig& config) { return config.has_grouped_query(); },
      .resolve = resolve_grouped_query,
      .make = make_grouped_query,
      .shared_out = [](const ModelConfig& config) -> NumbersByKey {
        return {{"heads", config.heads}, {"kv_heads", config.kv_heads}};
      },
      .hugging_face = grouped_query_in_hugging_face()};
}

LayerKind sliding_window_kind() {
  LayerKind kind = grouped_query_kind();
  kind.name = kSlidingWindow;
  kind.settings = settings_under<SlidingWindowSettings>(
      "sliding_window", "of grouped-query attention in a window, \"sliding_window\"");
  kind.keys.push_back("sliding_window");
  kind.missing = "sliding_window attention";
  kind.is_in = [](const ModelConfig& config) { return config.has_attention(kSlidingWindow); };
  kind.resolve = [](ModelConfig& config, const std::string& path) {
    const double theta = config.settings<SlidingWindowSettings>().rope_theta;
    require_usage(theta == 0 || theta > 1,
                  "{}.sliding_window.rope_theta: expected 0 or more than 1, got {}", path, theta);
  };
  kind.make = make_sliding_window;
  return kind;
}

LayerKind nope_kind() {
  LayerKind kind = grouped_query_kind();
  kind.name = kNope;
  kind.settings = {};
  kind.missing = "nope attention";
  kind.is_in = [](const ModelConfig& config) { return config.has_attention(kNope); };
  kind.resolve = [](ModelConfig&, const std::string&) {};
  kind.make = make_nope;
  return kind;
}

}  // namespace attnres
