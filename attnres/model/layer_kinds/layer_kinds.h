// The entries of the lists in layer_kind.cc.
#pragma once

#include "attnres/model/layer_kind.h"
#include "attnres/support/config.h"

namespace attnres {

// What a recipe's model has under this key.
template <class Settings>
KindSettings settings_under(const char* key, const char* meaning) {
  const auto visit = [key, meaning](auto& v, ModelConfig& config) {
    v(key, config.settings<Settings>(), meaning);
  };
  return {key, visit, visit, visit};
}

LayerKind grouped_query_kind();  // layers/attention.h, as the next two
LayerKind sliding_window_kind();
LayerKind nope_kind();
LayerKind delta_kind();    // layers/delta_attention.h
LayerKind latent_kind();   // layers/latent_attention.h
LayerKind dense_kind();    // layers/feed_forward.h
LayerKind experts_kind();  // layers/experts.h

}  // namespace attnres
