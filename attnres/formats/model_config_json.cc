#include "attnres/formats/model_config_json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>

#include "attnres/formats/config_keys.h"
#include "attnres/formats/deepseek_config_json.h"
#include "attnres/formats/kimi_config_json.h"
#include "attnres/formats/llama_family.h"
#include "attnres/formats/safetensors.h"
#include "attnres/support/config.h"
#include "attnres/support/format.h"
#include "attnres/support/nearest.h"

namespace attnres {
namespace {

std::string dtype_name(at::ScalarType dtype) {
  if (dtype == at::kFloat) return "float32";
  if (dtype == at::kBFloat16) return "bfloat16";
  if (dtype == at::kHalf) return "float16";
  fail("model directory: weights are stored as float32, bfloat16 or float16, not as {}",
       stored_dtype_name(dtype));
}

ModelConfig from_attnres(const ConfigKeys& keys) {
  const ModelConfig model = read_stored_model(keys.at("attnres"), keys, "attnres");
  const bool tied = keys.flag("tie_word_embeddings", model.tie_embeddings);
  require(tied == model.tie_embeddings,
          "{}: tie_word_embeddings is {}, but attnres.tie_embeddings is {}", keys.what(), tied,
          model.tie_embeddings);
  return model;
}

// By their model_type; the text part of a model of several kinds of input has one of its own.
struct KnownType {
  FileLayout layout;
  bool is_nested = false;  // in text_config
};
std::optional<KnownType> find_type(const std::string& type) {
  static const std::map<std::string, KnownType> others = {
      {"gemma3", {FileLayout::gemma3, true}},     {"gemma3_text", {FileLayout::gemma3}},
      {"deepseek_v3", {FileLayout::deepseek_v3}}, {"kimi_k2", {FileLayout::deepseek_v3}},
      {"kimi_linear", {FileLayout::kimi_linear}}, {"kimi_k3", {FileLayout::kimi_k3, true}},
      {"attnres", {FileLayout::attnres}}};
  if (const auto found = others.find(type); found != others.end()) return found->second;
  const std::vector<std::string> llamas = llama_family_types();
  const bool is_llama = std::find(llamas.begin(), llamas.end(), type) != llamas.end();
  return is_llama ? std::optional(KnownType{FileLayout::llama}) : std::nullopt;
}

// What attnres.retrofit of the Python package makes of a model of transformers, where that saves
// it: the model's own configuration, without its type, and what its connections were replaced by.
constexpr const char* kRetrofitted = "attnres_retrofitted";

StoredConfig from_retrofitted(const ConfigKeys& file) {
  Json base = file.at("base");
  require(base.is_object(), "{}: base: expected an object", file.what());
  base["model_type"] = file.text("base_model_type");
  const std::string what = file.what() + ": base";
  require(base["model_type"] != kRetrofitted, "{}: is itself a retrofitted model", what);
  StoredConfig stored = from_config_json(base, what);
  require(stored.model.is_residual(), "{}: has depth mixing of its own", what);
  Json model = write_config(stored.model);
  model["depth_mixing"] = file.at("depth_mixing");
  stored.model = read_stored_model(model, file, "attnres");
  return stored;
}

[[noreturn]] void refuse_type(const std::string& type, const std::string& what) {
  std::vector<std::string> known = llama_family_types();
  for (const char* other : {"gemma3", "deepseek_v3", "kimi_k2", "kimi_linear", "kimi_k3"}) {
    known.emplace_back(other);
  }
  fail("{}: model_type {} is unknown; attnres reads {} and attnres{}", what, one_line(type),
       fmt::join(known, ", "), did_you_mean(type, known));
}

ModelConfig read_model(FileLayout layout, const std::string& type, const ConfigKeys& keys) {
  switch (layout) {
    case FileLayout::llama:
      return from_llama_family_json(type, keys);
    case FileLayout::gemma3:
      return from_llama_family_json("gemma3_text", keys);
    case FileLayout::deepseek_v3:
      return from_deepseek_json(keys);
    case FileLayout::kimi_linear:
    case FileLayout::kimi_k3:
      return from_kimi_json(keys);
    case FileLayout::attnres:
      return from_attnres(keys);
  }
  fail("{}: a layout without a reader", keys.what());
}

Json write_model(FileLayout layout, const ModelConfig& model) {
  switch (layout) {
    case FileLayout::llama:
    case FileLayout::gemma3:
      return to_llama_family_json(model);
    case FileLayout::deepseek_v3:
      return to_deepseek_json(model);
    case FileLayout::kimi_linear:
      return to_kimi_linear_json(model);
    case FileLayout::kimi_k3:
      return to_kimi_k3_text_json(model);
    case FileLayout::attnres:
      break;
  }
  return {{"architectures", Json::array({"AttnResForCausalLM"})},
          {"model_type", "attnres"},
          {"auto_map",
           {{"AutoConfig", "modeling_attnres.AttnResConfig"},
            {"AutoModelForCausalLM", "modeling_attnres.AttnResForCausalLM"}}},
          {"attnres", write_config(model)}};
}

}  // namespace

std::vector<int64_t> DocumentIds::ends() const {
  std::vector<int64_t> ids;
  const auto add = [&](const Json& id) {
    if (id.is_number_integer()) ids.push_back(id.get<int64_t>());
  };
  if (end.is_array()) {
    for (const Json& id : end) add(id);
  } else {
    add(end);
  }
  return ids;
}

Json to_config_json(const StoredConfig& stored, at::ScalarType dtype) {
  const ModelConfig& model = stored.model;
  const FileLayout layout = stored.layout;
  Json json = write_model(layout, model);
  json.update(
      Json{{"vocab_size", stored.vocab_size},
           {layout == FileLayout::kimi_linear ? "model_max_length" : "max_position_embeddings",
            stored.context},
           {"tie_word_embeddings", model.tie_embeddings},
           {"bos_token_id", stored.document_ids.begin},
           {"eos_token_id", stored.document_ids.end},
           {"dtype", dtype_name(dtype)},
           {"torch_dtype", dtype_name(dtype)}});
  if (layout != FileLayout::kimi_k3) return json;
  return {{"architectures", Json::array({"KimiK3ForConditionalGeneration"})},
          {"model_type", "kimi_k3"},
          {"text_config", json},
          {"dtype", dtype_name(dtype)}};
}

StoredConfig from_config_json(const Json& json, const std::string& what) {
  const ConfigKeys file(json, what);
  const std::string type = file.text("model_type");
  if (type == kRetrofitted) return from_retrofitted(file);
  const std::optional<KnownType> known = find_type(type);
  if (!known) refuse_type(type, what);
  const bool nested = !file.missing("text_config");
  require(!nested || known->is_nested, "{}: text_config: attnres does not read it of {}", what,
          type);
  const ConfigKeys keys = nested ? file.inner("text_config") : file;
  require_unquantized(file);
  require_unquantized(keys);
  StoredConfig stored;
  stored.layout = known->layout;
  stored.model = read_model(known->layout, type, keys);
  stored.vocab_size = keys.whole("vocab_size");
  require(stored.vocab_size >= 1 && stored.vocab_size <= INT32_MAX,
          "{}: vocab_size: expected 1 to {}, got {}", keys.what(), INT32_MAX, stored.vocab_size);
  // Kimi Linear's older name.
  const char* context =
      keys.missing("model_max_length") ? "max_position_embeddings" : "model_max_length";
  stored.context = keys.whole(context);
  require(stored.context >= 2, "{}: {}: expected 2 or more, got {}", keys.what(), context,
          stored.context);
  const auto id = [&](const char* key) {
    return keys.missing(key) ? json.value(key, Json()) : keys.at(key);
  };
  stored.document_ids.begin = id("bos_token_id");
  stored.document_ids.end = id("eos_token_id");
  stored.misspelled = keys.misspelled();
  return stored;
}

}  // namespace attnres
