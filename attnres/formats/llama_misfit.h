// Why a model is none of Llama's family.
#pragma once

#include <string>

#include "attnres/model/config.h"

namespace attnres {

// What keeps a dense model with grouped-query attention and residual connections, whose
// llama_family_type is empty, out of the family: "model.KEY is VALUE, but ...".
std::string why_not_llama_family(const ModelConfig& model);

}  // namespace attnres
