// The kinds of attention that `model.attention` can name: what of a recipe's model each reads, how
// that is checked, and how it is built. What it computes, costs and keeps is its class's to tell
// (layers/); its names in files are with the others (parameter_names.h, formats/gguf_model.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attnres/layers/sublayer.h"
#include "attnres/model/config.h"
#include "attnres/support/parameters.h"

namespace attnres {

struct AttentionKind {
  std::string name;
  // Keys of a recipe's model that it reads and a model without attention would not have.
  std::vector<std::string> keys;
  std::string settings;  // of them, the object that is its own; empty: it has none
  // Checks them and fills in defaults. Throws UsageError naming the key, `path` of the model before
  // it.
  std::function<void(ModelConfig& config, const std::string& path)> resolve;
  std::function<std::unique_ptr<Sublayer>(const ModelConfig& config, const SublayerNeeds& needs,
                                          int site, ParameterRegistry& parameters)>
      make;
};

const std::vector<AttentionKind>& attention_kinds();
// Throws UsageError with their names if there is none.
const AttentionKind& find_attention_kind(const std::string& name, const std::string& path);

}  // namespace attnres
