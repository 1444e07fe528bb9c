// A Transformer out of a GGUF file (gguf_model.h says what is stored in another form than here).
#pragma once

#include <memory>

#include "attnres/formats/gguf_config.h"
#include "attnres/formats/gguf_reader.h"
#include "attnres/model/transformer.h"

namespace attnres {

// The stage with these sites of a model of this configuration, which is the file's, or the file's
// with parameters added, which then have no numbers yet. A folded
// pseudo-query becomes the pseudo-query of a key norm with gains of one, a folded gate one of full
// rank: both compute the same.
//
// Where `precision` packs weights as the file stores them, they are taken bit by bit and stay in
// the file, which is mapped while the model lives; those whose rows lie in another order are
// copied. The map from latents to keys alone, which lies transposed in the file, is rounded again
// where it has blocks. Other weights are rounded from the numbers that the file has.
//
// A process of a tensor group has its parts in memory of its own, copied site by site.
//
// Throws Error on missing, unknown or wrongly shaped tensors of the whole model, before there is
// memory for any, and on numbers that are not finite in a tensor of the stage.
std::unique_ptr<Transformer> load_gguf(const GgufFile& file, const GgufConfig& config,
                                       const ModelConfig& model, const Precision& precision = {},
                                       const SiteSet& sites = {},
                                       const TensorGroup* group = nullptr);

// The formats that keep each weight as the file stores it. One that is made of several tensors, or
// of one that lies in another order, is rounded again: to the file's format where that can be, else
// to q8_0 where it has blocks.
WeightFormats gguf_weight_formats(const GgufFile& file, const GgufConfig& config);

}  // namespace attnres
