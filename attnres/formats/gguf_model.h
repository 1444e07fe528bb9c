// A Transformer in the GGUF file from which llama.cpp computes it, by the first of its
// architectures that can: one of Llama's family (gguf_llama.h), DeepSeek-V3, Kimi Linear or Kimi K3
// (gguf_latent.h).
//
// What is stored in another form than here:
// - llama, smollm3 and deepseek2 turn neighbouring channels of a head by one angle: of the rows of
// a
//   query or key map that positions turn, c of the first half is stored at 2c and its partner in
//   the second half at 2c + 1.
// - llama3's scaled positions are a tensor of factors (gguf_rope.h).
// - A pseudo-query and its key norm's gain are their product; site 0 has zeros, which nothing
// reads.
// - A_log is -exp(A_log). W_kvb is one map per head for keys, transposed, and one for values.
// - kimi-k3 computes SiTU only: SwiGLU is SiTU with beta 2^16, equal to float32 rounding for inputs
//   below 30, and no linear_beta. A gate of low rank is the product of its two maps.
//
// llama.cpp has one eps: in latent norms and in the norms of delta attention's queries and keys it
// takes the model's norm_eps where this program takes 1e-6. So results are equal at norm_eps 1e-6;
// at 1e-5 log-probabilities of a small trained Kimi Linear differ by 6e-5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "attnres/formats/gguf_file_type.h"
#include "attnres/model/transformer.h"

namespace attnres {

// The name of the architecture. Throws Error saying what of the model llama.cpp does not compute.
std::string gguf_architecture(const ModelConfig& config);

// `context`: the number of tokens that the model was trained on at once. `tokenizer`: the keys
// tokenizer.ggml.*, with as many tokens as the model has embeddings. Matrices are stored as
// type_of_matrix says; norms, vectors, convolutions and the router, which llama.cpp reads so, as
// float32. Throws Error as
// gguf_architecture and write_gguf do.
void save_gguf(const Transformer& model, const std::filesystem::path& path, int64_t context,
               const GgufMetadata& tokenizer, const GgufFileType& type);

// What such a file has: its keys, but the tokenizer's, and its tensors, whose numbers may be
// others.
GgufMetadata gguf_metadata(const Transformer& model, int64_t context, const GgufFileType& type);
std::vector<GgufTensor> gguf_tensors(const Transformer& model, const GgufFileType& type);
// How such a file stores each of the model's weights.
WeightFormats gguf_formats(const Transformer& model, const GgufFileType& type);

}  // namespace attnres
