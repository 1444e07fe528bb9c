#include "attnres/formats/model_config_json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>

#include "attnres/formats/config_keys.h"
#include "attnres/formats/deepseek_config_json.h"
#include "attnres/formats/kimi_config_json.h"
#include "attnres/formats/llama_family.h"
#include "attnres/formats/quantized_weights.h"
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

// By their model_type, as far as texts go: positions of images are those of any token there.
struct KnownType {
  FileLayout layout;
  std::string llama;  // the member of its family
};
std::optional<KnownType> find_type(const std::string& type) {
  static const std::map<std::string, KnownType> others = {
      {"gemma3", {FileLayout::gemma3, "gemma3_text"}},
      {"gemma3_text", {FileLayout::gemma3, "gemma3_text"}},
      {"qwen2_vl", {FileLayout::llama, "qwen2"}},
      {"qwen2_vl_text", {FileLayout::llama, "qwen2"}},
      {"qwen2_5_vl", {FileLayout::llama, "qwen2"}},
      {"qwen2_5_vl_text", {FileLayout::llama, "qwen2"}},
      {"qwen3_vl_text", {FileLayout::llama, "qwen3"}},
      {"gpt_oss", {FileLayout::softmax_experts, "gpt_oss"}},
      {"mixtral", {FileLayout::softmax_experts, "mixtral"}},
      {"qwen3_moe", {FileLayout::softmax_experts, "qwen3_moe"}},
      {"deepseek_v3", {FileLayout::deepseek_v3, ""}},
      {"kimi_k2", {FileLayout::deepseek_v3, ""}},
      {"kimi_linear", {FileLayout::kimi_linear, ""}},
      {"kimi_k3", {FileLayout::kimi_k3, ""}},
      {"attnres", {FileLayout::attnres, ""}}};
  if (const auto found = others.find(type); found != others.end()) return found->second;
  const std::vector<std::string> llamas = llama_family_types();
  const bool is_llama = std::find(llamas.begin(), llamas.end(), type) != llamas.end();
  return is_llama ? std::optional(KnownType{FileLayout::llama, type}) : std::nullopt;
}

// Models of images and text around one of text alone, which text_config describes: what its
// model_type is where the file leaves that out. Others' text models see their images in another way
// than as tokens among tokens.
const std::map<std::string, std::string>& wrappers() {
  static const std::map<std::string, std::string> all = {{"gemma3", "gemma3_text"},
                                                         {"kimi_k3", "kimi_k3"},
                                                         {"kimi_k25", "kimi_k2"},
                                                         {"kimi_vl", "deepseek_v3"},
                                                         {"mistral3", "mistral"},
                                                         {"llava", "llama"},
                                                         {"llava_next", "llama"},
                                                         {"llava_onevision", "qwen2"},
                                                         {"internvl", "qwen2"},
                                                         {"idefics3", "llama"},
                                                         {"smolvlm", "llama"},
                                                         {"qwen2_vl", "qwen2_vl_text"},
                                                         {"qwen2_5_vl", "qwen2_5_vl_text"},
                                                         {"qwen3_vl", "qwen3_vl_text"}};
  return all;
}

// The type of the text model of a file with a text_config.
std::string inner_type(const std::string& type, const ConfigKeys& text, const ConfigKeys& file) {
  const auto wrapper = wrappers().find(type);
  require(wrapper != wrappers().end(), "{}: text_config: attnres does not read it of {}",
          file.what(), one_line(type));
  // K3's calls itself kimi_linear, which has less.
  const bool says_more = type != "kimi_k3" && !text.missing("model_type");
  return says_more ? text.text("model_type") : wrapper->second;
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
  stored.model =
      read_stored_model(model, file, "as a model of attnres", {{"depth_mixing", "depth_mixing"}});
  return stored;
}

[[noreturn]] void refuse_type(const std::string& type, const std::string& what) {
  std::vector<std::string> known = llama_family_types();
  for (const char* other : {"deepseek_v3", "kimi_k2", "kimi_linear", "kimi_k3"}) {
    known.emplace_back(other);
  }
  std::vector<std::string> around;
  for (const auto& [wrapper, text] : wrappers()) around.push_back(wrapper);
  std::vector<std::string> all = known;
  all.insert(all.end(), around.begin(), around.end());
  fail("{}: model_type {} is unknown; attnres reads {} and attnres, and the text models of {}{}",
       what, one_line(type), fmt::join(known, ", "), fmt::join(around, ", "),
       did_you_mean(type, all));
}

ModelConfig read_model(const KnownType& known, const ConfigKeys& keys) {
  switch (known.layout) {
    case FileLayout::llama:
    case FileLayout::gemma3:
    case FileLayout::softmax_experts:
      return from_llama_family_json(known.llama, keys);
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
    case FileLayout::softmax_experts:  // layout_of does not give it
    case FileLayout::attnres:
      break;
  }
  Json own = write_config(model);
  if (model.lora.rank == 0) own.erase("lora");
  return {{"architectures", Json::array({"AttnResForCausalLM"})},
          {"model_type", "attnres"},
          {"auto_map",
           {{"AutoConfig", "modeling_attnres.AttnResConfig"},
            {"AutoModelForCausalLM", "modeling_attnres.AttnResForCausalLM"}}},
          {"attnres", own}};
}

// What the text model's configuration leaves to that around it.
Json with_outer_keys(const Json& text, const Json& file) {
  Json keys = text;
  for (const char* key : {"tie_word_embeddings", "bos_token_id", "eos_token_id"}) {
    const bool is_missing = !keys.contains(key) || keys[key].is_null();
    if (is_missing && file.contains(key)) keys[key] = file[key];
  }
  return keys;
}

// What Gemma 3's files leave out.
constexpr int64_t kGemmaVocabulary = 262208, kGemmaContext = 131072;

int64_t read_stored_context(const ConfigKeys& keys, bool is_gemma) {
  // Kimi Linear's older name.
  const char* key =
      keys.missing("model_max_length") ? "max_position_embeddings" : "model_max_length";
  return is_gemma ? read_context(keys, key, kGemmaContext) : read_context(keys, key);
}

int64_t read_further_layers(const ConfigKeys& keys) {
  constexpr int64_t kMost = 1024;
  constexpr const char* kKey = "num_nextn_predict_layers";
  const int64_t layers = keys.whole(kKey, 0);
  require(layers >= 0 && layers <= kMost, "{}: {}: expected 0 to {}, got {}", keys.what(), kKey,
          kMost, layers);
  return layers;
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

Json known_ids(const Json& ids, int64_t vocab_size, const std::string& what,
               std::vector<std::string>& notes) {
  Json known = Json::array(), others = Json::array();
  for (const Json& id : ids.is_array() ? ids : Json::array({ids})) {
    if (id.is_null()) continue;
    const std::optional<int64_t> number = whole_number(id);
    const bool is_one = number && *number >= 0 && *number < vocab_size;
    (is_one ? known : others).push_back(id);
  }
  if (others.empty()) return ids;
  notes.push_back(fmt::format("{}: not read: {}; this model has the token ids 0 to {}", what,
                              shown(others.size() == 1 ? others[0] : others), vocab_size - 1));
  return known.size() > 1 ? known : known.empty() ? Json() : known[0];
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
  std::string type = file.text("model_type");
  if (type == kRetrofitted) return from_retrofitted(file);
  const bool is_nested = !file.missing("text_config");
  const ConfigKeys text = is_nested ? file.inner("text_config") : file;
  const bool is_wrapper = wrappers().contains(type), is_text = find_type(type).has_value();
  if (!is_wrapper && !is_text) refuse_type(type, what);
  if (!is_text) file.at("text_config");
  if (is_nested) type = inner_type(type, text, file);
  const std::optional<KnownType> known = find_type(type);
  if (!known) refuse_type(type, text.what());
  require_read_weights(file);
  require_read_weights(text);
  const Json own = is_nested ? with_outer_keys(json.at("text_config"), json) : json;
  const ConfigKeys keys(own, text.what());
  const bool is_gemma = known->layout == FileLayout::gemma3;
  StoredConfig stored;
  stored.layout = known->layout;
  stored.model = read_model(*known, keys);
  stored.vocab_size = is_gemma ? read_vocabulary(keys, kGemmaVocabulary) : read_vocabulary(keys);
  stored.context = read_stored_context(keys, is_gemma);
  stored.further_layers = read_further_layers(keys);
  const auto read_ids = [&](const char* key) {
    return known_ids(own.value(key, Json()), stored.vocab_size,
                     fmt::format("{}: {}", keys.what(), key), stored.notes);
  };
  stored.document_ids.begin = read_ids("bos_token_id");
  stored.document_ids.end = read_ids("eos_token_id");
  stored.misspelled = keys.misspelled();
  return stored;
}

}  // namespace attnres
