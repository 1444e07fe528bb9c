// What writing with a model takes, worked out before its weights are there: of one sequence, on the
// CPU.
#pragma once

#include <cstdint>

#include "attnres/model/config.h"
#include "attnres/parameters/precision.h"

namespace attnres {

// Bytes.
struct InferenceSize {
  int64_t parameters = 0;
  double weights = 0;  // as they are stored
  double experts = 0;  // of these, those of routed experts
  double read = 0;     // of all weights, what a token reads: experts that are chosen, a row of the
                       // embedding
  double copies = 0;   // of maps that are kept as float32 beside, since layers take them apart
  double kept = 0;     // of a sequence of `context` tokens
};
InferenceSize inference_size(const ModelConfig& config, int64_t vocab_size,
                             const WeightFormats& formats, int64_t context);

// Seconds of a token here, of one sequence with few tokens before it, on libtorch's threads, where
// all weights lie in memory: the times of a few layers of each kind with random weights of the same
// shapes and formats, each times how many bytes its layers read, and of the head. Without what
// combines the layers, which adds a few per cent. Takes some seconds and about a gigabyte in
// temporary files, and is only true where nothing else runs (records/home.md compares it with two
// files).
double measure_token(const ModelConfig& config, int64_t vocab_size, const WeightFormats& formats);

// Bytes a second of weights in this format, which no cache holds, as a token's products read them,
// on libtorch's threads. Takes a second.
double measure_weights_read(WeightFormat format);

}  // namespace attnres
