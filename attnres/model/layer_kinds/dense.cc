#include "attnres/layers/feed_forward.h"
#include "attnres/model/layer_kinds/layer_kinds.h"

namespace attnres {
namespace {

std::unique_ptr<Sublayer> make_dense(const ModelConfig& config, const LayerPlace& place,
                                     ParameterRegistry& parameters) {
  return std::make_unique<FeedForward>(config.ffn_width, config.activation, place, parameters);
}

}  // namespace

LayerKind dense_kind() {
  return {.name = kDense,
          .keys = {"ffn_width"},
          .missing = "dense feed-forward",
          .is_in = [](const ModelConfig& config) { return !config.has_experts(0); },
          .resolve = [](ModelConfig&, const std::string&) {},
          .make = make_dense,
          .shared_out = [](const ModelConfig& config) -> NumbersByKey {
            return {{"ffn_width", config.ffn_width}};
          },
          .hugging_face = weights_in("mlp.", {"gate_proj", "up_proj", "down_proj"})};
}

}  // namespace attnres
