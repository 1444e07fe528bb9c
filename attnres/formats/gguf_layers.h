// The tensors that llama.cpp's files have of a layer, in place of its parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "attnres/model/config.h"

namespace attnres {

// llama.cpp's architectures that compute models of ours.
enum class GgufArchitecture {
  llama,
  qwen2,
  qwen3,
  smollm3,
  gemma3,
  qwen3moe,
  gpt_oss,
  deepseek2,
  kimi_linear,
  kimi_k3
};

// A tensor of a GGUF file, made of parameters of one site.
struct GgufPart {
  // In the file's number type, or always in float32.
  enum class Storage { matrix, exact };

  std::string name;                // "attn_q.weight", after "blk.N."
  std::vector<std::string> roles;  // what it is made of
  Storage storage = Storage::matrix;
  // The stored tensor, of those of the roles; none: the only one as it is. Has to work on tensors
  // without data, too.
  std::function<at::Tensor(const std::vector<at::Tensor>&)> make = {};
  // The other way: fills the part of their tensors that this tells. None: the only one's numbers in
  // their order.
  std::function<void(const at::Tensor& stored, const std::vector<at::Tensor>&)> read = {};
  // Whether `read` moves whole rows, so that it may be given rows of bytes.
  bool reads_rows = false;
};

// Those of the sublayer at a site, in a file of an architecture that has such layers. Throws Error
// where none has.
std::vector<GgufPart> gguf_layer_parts(const ModelConfig& config, int site,
                                       GgufArchitecture architecture);

}  // namespace attnres
