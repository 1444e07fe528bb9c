// Depth weights as they are answered.
#pragma once

#include "attnres/infer/text_engine.h"
#include "attnres/support/json.h"

namespace attnres {

// Each site with its name and its sources' names.
Json sites_json(const ModelDescription& model);

// Each source's weight, averaged over tokens and over the sites that have a choice.
Json shares_json(const ModelDescription& model, const TokensDepthWeights& depth);

// Entropies of each token and site, in nats.
Json entropies_json(const TokensDepthWeights& depth);

}  // namespace attnres
