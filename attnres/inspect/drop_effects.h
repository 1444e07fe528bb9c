// What a model's loss is without a part of it: which layers and which sources matter, not only
// which have weight.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attnres/model/transformer.h"

namespace attnres {

// Changes of the mean loss, nats a token, on one text: loss without the part - loss with all.
struct DropEffects {
  struct Layer {
    int layer = 0;  // from 1
    double change = 0;
  };
  struct Sublayer {
    int site = 0;
    std::string name;  // site_name
    double change = 0;
  };
  struct Source {
    std::string name;
    double change = 0;
  };
  double loss = 0;                  // with all
  std::vector<Layer> layers;        // both sublayers of the Transformer layer give zeros
  std::vector<Sublayer> sublayers;  // by site: that sublayer gives zeros
  // Only of mechanisms with depth weights: the source has no weight at any site that has another
  // one, and the others' weights are renormalised (MixingAnalysis::dropped_source). The partial sum
  // is one source for all blocks.
  std::vector<Source> sources;
};

// `context` as in EvaluationBatches. on_progress hears how many of the passes over the text are
// done. Throws Error on fewer than two tokens, and when the loss of the whole model is not finite.
DropEffects measure_drop_effects(
    const Transformer& model, const std::vector<int32_t>& tokens, int64_t context,
    const std::function<void(int64_t done, int64_t total)>& on_progress = {});

// How many layers a model uses, from the changes c_l of its loss without each:
//
//   exp(-sum_l p_l ln p_l),  p_l = max(c_l, 0) / sum_k max(c_k, 0)
//
// L where all layers cost alike, 1 where one alone does, 0 where none does. Csordas et al. (arXiv
// 2505.13898) ask the question by skipping layers and give no single number; this one is the
// exponential of an entropy, as effective rank is (Roy and Vetterli, EUSIPCO 2007) of singular
// values. Throws Error on a change that is not finite.
double effective_depth(const std::vector<double>& changes);

}  // namespace attnres
