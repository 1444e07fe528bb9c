// The kinds of layers that a model can be made of: what of a recipe's model each reads, how that is
// checked, how it is built, and what its parameters are called in files. What it computes, costs
// and keeps is its class's to tell (layers/). A kind is one source in layer_kinds/ and a line in
// the list of layer_kind.cc.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attnres/layers/layer_place.h"
#include "attnres/layers/sublayer.h"
#include "attnres/model/config.h"
#include "attnres/parameters/parameters.h"

namespace attnres {

// A layer's roles to their names in Hugging Face files, after "model.layers.N.". Of stacked experts
// each is a tensor of its own, and {} stands for its number.
using HuggingFaceNames = std::map<std::string, std::string>;

// `prefix`ROLE.weight, for each of the roles.
HuggingFaceNames weights_in(const std::string& prefix, const std::vector<std::string>& roles);

// Numbers of a recipe's model.
using NumbersByKey = std::vector<std::pair<std::string, int64_t>>;

// The object of a recipe's model that has a kind's own settings (ModelConfig::settings).
struct KindSettings {
  std::string key = {};  // "delta_attention"; empty: there are none
  std::function<void(ConfigReader& v, ModelConfig& config)> read = {};
  std::function<void(ConfigWriter& v, ModelConfig& config)> write = {};
  std::function<void(ConfigLister& v, ModelConfig& config)> list = {};
};

struct LayerKind {
  std::string name;  // "delta"; of an attention as in a recipe
  // Keys of a recipe's model that it reads and a model without such layers would not have.
  std::vector<std::string> keys;
  KindSettings settings = {};  // under one of these keys
  std::string missing;         // "delta attention": what a model with these settings alone lacks
  // Whether a model has layers of this kind, or others that read its settings.
  std::function<bool(const ModelConfig& config)> is_in;
  // Checks them and fills in defaults. Throws UsageError naming the key, `path` of the model before
  // it.
  std::function<void(ModelConfig& config, const std::string& path)> resolve;
  std::function<std::unique_ptr<Sublayer>(const ModelConfig& config, const LayerPlace& place,
                                          ParameterRegistry& parameters)>
      make;
  // What a tensor group's processes share out equally.
  std::function<NumbersByKey(const ModelConfig& config)> shared_out;
  HuggingFaceNames hugging_face;
};

// Those that `model.attention` can name, and those that feed-forwards are.
const std::vector<LayerKind>& attention_kinds();
const std::vector<LayerKind>& feed_forward_kinds();
std::vector<const LayerKind*> all_kinds();  // the former, then the latter

// What the sublayer at a site is.
const LayerKind& layer_kind(const ModelConfig& config, int site);
// Whether the layers can be cut into so many equal parts; the other throws UsageError naming the
// key where they cannot.
bool has_equal_parts(const ModelConfig& config, int64_t parts);
void require_equal_parts(const ModelConfig& config, int64_t parts);

}  // namespace attnres
