// A Transformer in the GGUF file that llama.cpp computes it from. Of its architectures:
//   llama   grouped-query attention with rotary positions, plain residual connections
//
// llama.cpp turns neighbouring channels of a head by one angle, so the rows of a query or key map
// are stored in another order than here: channel c of the first half of a head at 2c, its partner
// at 2c + 1.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "attnres/formats/gguf.h"
#include "attnres/model/transformer.h"

namespace attnres {

// The name of the architecture that computes this model. Throws Error saying what of the model
// llama.cpp does not compute.
std::string gguf_architecture(const Transformer& model);

// `context`: the number of tokens that the model was trained on at once. `tokenizer`: the keys
// tokenizer.ggml.*, with as many tokens as the model has embeddings. Matrices are stored as `type`,
// rows that it does not have (q8_0: of another length than multiples of 32) as float16; all else,
// which llama.cpp expects so, as float32. Throws Error as gguf_architecture and write_gguf do.
void save_gguf(const Transformer& model, const std::filesystem::path& path, int64_t context,
               const GgufMetadata& tokenizer, GgufType type);

}  // namespace attnres
