#include "attnres/formats/llama_family.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "attnres/formats/gemma_scales.h"
#include "attnres/formats/rope_json.h"
#include "attnres/layers/attention.h"
#include "attnres/layers/delta_attention.h"
#include "attnres/layers/experts.h"
#include "attnres/layers/latent_attention.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

// What of a model is not Llama's.
struct LlamaParts {
  bool qkv_bias, qk_norm;
  bool windows, all_windows, own_window_theta;
  bool nope;
  bool gemma;  // GeGLU, norms of outputs, a scale of embeddings
};

// None where it has what no member has, or parts of Gemma without the others.
std::optional<LlamaParts> llama_parts(const ModelConfig& model) {
  const auto& settings = model.settings<GroupedQuerySettings>();
  const bool is_dense = model.settings<ExpertsSettings>().count == 0 && model.is_residual();
  if (!is_dense || model.has_attention(kDelta) || model.has_attention(kLatent)) return {};
  if (settings.output_bias || settings.sinks) return {};
  LlamaParts parts = {.qkv_bias = settings.qkv_bias,
                      .qk_norm = settings.qk_norm,
                      .windows = model.has_attention(kSlidingWindow),
                      .all_windows = model.attention == std::vector<std::string>{kSlidingWindow},
                      .own_window_theta = model.settings<SlidingWindowSettings>().rope_theta > 0,
                      .nope = model.has_attention(kNope),
                      .gemma = model.output_norm};
  const bool has_gemma_parts = model.activation.type == "gelu_tanh" &&
                               has_whole_score_scale(model) && has_gemma_embedding_scale(model);
  const bool has_none =
      model.activation.type == "silu" && model.embedding_scale == 1 && settings.score_scale == 0;
  if (parts.gemma ? !has_gemma_parts : !has_none) return {};
  return parts;
}

// The kinds of layer after layer, to and from the words of transformers.
Json layer_types_json(const ModelConfig& model) {
  Json types = Json::array();
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    types.push_back(model.attention_of(layer) == kSlidingWindow ? kWindowLayer : kFullLayer);
  }
  return types;
}

std::vector<std::string> read_layer_types(const ConfigKeys& keys, int64_t layers) {
  std::vector<std::string> kinds;
  for (const std::string& type : keys.texts("layer_types")) {
    require(type == kFullLayer || type == kWindowLayer,
            "{}: layer_types: attnres computes {} and {}, not {}", keys.what(), kFullLayer,
            kWindowLayer, one_line(type));
    kinds.push_back(type == kWindowLayer ? kSlidingWindow : kGroupedQuery);
  }
  require(std::ssize(kinds) == layers, "{}: layer_types has {} entries, but there are {} layers",
          keys.what(), kinds.size(), layers);
  return kinds;
}

// `count` kinds, the i-th of which is `kind(i)`.
template <class F>
std::vector<std::string> kinds_of_layers(int64_t count, const F& kind) {
  std::vector<std::string> kinds;
  for (int64_t i = 0; i < count; ++i) kinds.emplace_back(kind(i));
  return kinds;
}

bool has_windows(const Json& model) {
  const std::vector<std::string> kinds = model["attention"];
  return std::find(kinds.begin(), kinds.end(), kSlidingWindow) != kinds.end();
}

// Windows of Qwen and SmolLM: in the layers that layer_types names, or in older files from
// max_window_layers on, and only if use_sliding_window.
void read_some_windows(const ConfigKeys& keys, Json& model) {
  const auto layers = model["layers"].get<int64_t>();
  const bool uses = keys.flag("use_sliding_window", false) && !keys.missing("sliding_window");
  const int64_t first = uses ? keys.whole("max_window_layers", 28) : layers;
  model["attention"] =
      keys.missing("layer_types")
          ? kinds_of_layers(layers,
                            [&](int64_t i) { return i >= first ? kSlidingWindow : kGroupedQuery; })
          : read_layer_types(keys, layers);
  if (!has_windows(model)) return;
  require(uses, "{}: layer_types has {}, but use_sliding_window is false or there is no window",
          keys.what(), kWindowLayer);
  model["sliding_window"]["window"] = keys.whole("sliding_window");
}

void write_some_windows(const ModelConfig& model, Json& json) {
  const bool uses = model.has_attention(kSlidingWindow);
  json["layer_types"] = layer_types_json(model);
  json["use_sliding_window"] = uses;
  json["sliding_window"] = uses ? Json(model.settings<SlidingWindowSettings>().window) : Json();
}

void read_mistral(const ConfigKeys& keys, Json& model) {
  if (keys.missing("sliding_window")) return;
  model["attention"] = std::vector<std::string>{kSlidingWindow};
  model["sliding_window"]["window"] = keys.whole("sliding_window");
}

void write_mistral(const ModelConfig& model, Json& json) {
  json["sliding_window"] = model.settings<SlidingWindowSettings>().window;
}

// no_rope_layers is 1 for a layer that has rotary positions.
void read_smollm3(const ConfigKeys& keys, Json& model) {
  read_some_windows(keys, model);
  const auto layers = model["layers"].get<int64_t>();
  std::vector<int64_t> rotary;
  if (!keys.missing("no_rope_layers")) {
    rotary = keys.whole_numbers("no_rope_layers");
  } else {
    const int64_t interval = keys.positive("no_rope_layer_interval", 4);
    for (int64_t i = 1; i <= layers; ++i) rotary.push_back(i % interval != 0);
  }
  require(std::ssize(rotary) == layers,
          "{}: no_rope_layers has {} entries, but there are {} layers", keys.what(), rotary.size(),
          layers);
  std::vector<std::string> kinds = model["attention"];
  for (int64_t i = 0; i < layers; ++i) {
    if (rotary[i] != 0) continue;
    require(kinds[i] == kGroupedQuery,
            "{}: layer {} has a sliding window and no rotary positions: attnres computes only one "
            "of these",
            keys.what(), i);
    kinds[i] = kNope;
  }
  model["attention"] = kinds;
}

void write_smollm3(const ModelConfig& model, Json& json) {
  write_some_windows(model, json);
  Json rotary = Json::array();
  for (int64_t i = 0; i < model.layers; ++i) rotary.push_back(model.attention_of(i) != kNope);
  for (Json& has : rotary) has = has.get<bool>() ? 1 : 0;
  json["no_rope_layers"] = rotary;
}

// Layers in a window have positions of their own, which are not scaled. rope_scaling, of older
// files, is of the others.
void read_gemma_rope(const ConfigKeys& keys, Json& model) {
  Json of_full = Json::object(), of_window = Json::object();
  if (!keys.missing("rope_parameters")) {
    const ConfigKeys of_types = keys.inner("rope_parameters");
    require(!of_types.missing(kFullLayer) || !of_types.missing(kWindowLayer),
            "{}: expected those of {} and {}, each under its name", of_types.what(), kFullLayer,
            kWindowLayer);
    if (!of_types.missing(kFullLayer)) of_full = of_types.at(kFullLayer);
    if (!of_types.missing(kWindowLayer)) of_window = of_types.at(kWindowLayer);
  }
  const std::string what = keys.what() + ": rope_parameters: ";
  const ConfigKeys given(of_full, what + kFullLayer), window_keys(of_window, what + kWindowLayer);
  if (!keys.missing("rope_scaling")) {
    (void)keys.inner("rope_scaling");  // is an object
    of_full.update(keys.at("rope_scaling"));
  }
  const StoredRope full = read_rope_parameters(given, keys, keys.number("rope_theta", 1e6));
  const StoredRope window =
      read_rope_parameters(window_keys, keys, keys.number("rope_local_base_freq", 10000));
  require(window.scaling.is_none(),
          "{}: rope_parameters: attnres does not scale the positions of layers in a window",
          keys.what());
  // A recipe's 0 stands for the other layers'.
  require(window.theta > 0, "{}: rope_theta of layers in a window: expected more than 0, got {}",
          keys.what(), window.theta);
  model["rope_theta"] = full.theta;
  model["rope_scaling"] = write_config(full.scaling);
  if (has_windows(model)) model["sliding_window"]["rope_theta"] = window.theta;
}

void read_gemma3(const ConfigKeys& keys, Json& model) {
  const auto layers = model["layers"].get<int64_t>();
  for (const char* cap : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    require(keys.missing(cap), "{}: {}: attnres does not compute it", keys.what(), cap);
  }
  keys.only("use_bidirectional_attention", false);
  const char* pattern =
      keys.missing("sliding_window_pattern") ? "_sliding_window_pattern" : "sliding_window_pattern";
  const int64_t period = keys.positive(pattern, 6);
  model["attention"] =
      keys.missing("layer_types")
          ? kinds_of_layers(
                layers,
                [&](int64_t i) { return (i + 1) % period != 0 ? kSlidingWindow : kGroupedQuery; })
          : read_layer_types(keys, layers);
  if (has_windows(model)) model["sliding_window"]["window"] = keys.whole("sliding_window", 4096);
  read_gemma_rope(keys, model);
  const double scalar = keys.number("query_pre_attn_scalar", 256);
  require(scalar >= 1 && scalar <= kLargestDimension,
          "{}: query_pre_attn_scalar: expected 1 to {}, got {}", keys.what(), kLargestDimension,
          scalar);
  const bool is_usual = scalar == static_cast<double>(model["head_width"].get<int64_t>());
  model["grouped_query"]["score_scale"] = is_usual ? 0 : 1 / std::sqrt(scalar);
  model["activation"] = {{"type", "gelu_tanh"}};
  model["output_norm"] = true;
  model["embedding_scale"] = gemma_embedding_scale(model["width"].get<int64_t>());
}

void write_gemma3(const ModelConfig& model, Json& json) {
  json.erase("hidden_act");
  json.erase("rope_theta");
  json.erase("rope_scaling");
  json["hidden_activation"] = "gelu_pytorch_tanh";
  const auto& windows = model.settings<SlidingWindowSettings>();
  const StoredRope full = {model.rope_theta, model.rope_scaling},
                   window = {.theta =
                                 windows.rope_theta > 0 ? windows.rope_theta : model.rope_theta};
  json["rope_parameters"] = {{kFullLayer, rope_parameters_json(full)},
                             {kWindowLayer, rope_parameters_json(window)}};
  json["layer_types"] = layer_types_json(model);
  json["sliding_window"] = windows.window;
  const double scale = model.settings<GroupedQuerySettings>().score_scale;
  json["query_pre_attn_scalar"] =
      scale == 0 ? model.head_width : static_cast<int64_t>(std::llround(1 / (scale * scale)));
}

const char* experts_key(const ConfigKeys& keys) {
  return keys.missing("num_experts") ? "num_local_experts" : "num_experts";
}

// Every layer has experts, chosen by softmax.
void read_softmax_experts(const ConfigKeys& keys, const char* width, Json& model) {
  model["experts"] = {{"count", keys.positive(experts_key(keys))},
                      {"chosen", keys.positive("num_experts_per_tok")},
                      {"width", keys.positive(width)},
                      {"shared", 0},
                      {"dense_layers", 0},
                      {"scores", "softmax"}};
}

// The softmax is over those that are chosen: shares of all experts, divided by their sum.
void read_gpt_oss(const ConfigKeys& keys, Json& model) {
  const auto layers = model["layers"].get<int64_t>();
  read_softmax_experts(keys, "intermediate_size", model);
  keys.only("swiglu_alpha", 1.702);
  model["experts"].update({{"router_bias", true}, {"bias", true}});
  model["activation"] = {{"type", "swiglu_oai"}, {"limit", keys.number("swiglu_limit", 7)}};
  model["grouped_query"].update({{"output_bias", true}, {"sinks", true}});
  model["attention"] =
      keys.missing("layer_types")
          ? kinds_of_layers(layers,
                            [](int64_t i) { return i % 2 == 0 ? kSlidingWindow : kGroupedQuery; })
          : read_layer_types(keys, layers);
  if (has_windows(model)) model["sliding_window"]["window"] = keys.whole("sliding_window");
}

// With a window, every layer has it.
void read_qwen3_moe(const ConfigKeys& keys, Json& model) {
  if (keys.flag("use_sliding_window", false)) read_mistral(keys, model);
  keys.only("decoder_sparse_step", 1);
  keys.only("mlp_only_layers", Json::array());
  read_softmax_experts(keys, "moe_intermediate_size", model);
  model["experts"]["renormalize"] = keys.flag("norm_topk_prob", false);
}

void read_mixtral(const ConfigKeys& keys, Json& model) {
  read_mistral(keys, model);
  read_softmax_experts(keys, "intermediate_size", model);
}

// What files leave out.
struct LlamaDefaults {
  int64_t heads = 0;       // 0: they have to say it
  int64_t kv_heads = 0;    // 0: as many as heads
  int64_t head_width = 0;  // 0: hidden_size / heads
  double rope_theta = 10000;
  bool tied = false;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
};

struct LlamaMember {
  const char* type;
  const char* class_name;
  std::function<bool(const LlamaParts& parts)> is;
  std::function<void(const ConfigKeys& keys, Json& model)> read;  // of a model with what all have
  std::function<void(const ModelConfig& model, Json& json)> write;
  bool qkv_bias = false, qk_norm = false;
  bool own_rope = false;        // which `read` reads
  bool attention_bias = false;  // what the key of this name says
  LlamaDefaults defaults = {};
};

// Whether nothing is left of Llama but these.
bool only(const LlamaParts& parts, bool qkv_bias, bool qk_norm) {
  return parts.qkv_bias == qkv_bias && parts.qk_norm == qk_norm && !parts.gemma;
}
bool common_window(const LlamaParts& parts) {
  return !parts.windows || !parts.own_window_theta;
}

const std::vector<LlamaMember>& members() {
  using Parts = LlamaParts;
  const auto read_nothing = [](const ConfigKeys&, Json&) {};
  const auto write_nothing = [](const ModelConfig&, Json&) {};
  const auto never = [](const Parts&) { return false; };  // is written as a model of attnres
  static const std::vector<LlamaMember> all = {
      {.type = "llama",
       .class_name = "LlamaForCausalLM",
       .is = [](const Parts& p) { return only(p, false, false) && !p.windows && !p.nope; },
       .read = read_nothing,
       .write = write_nothing},
      {.type = "mistral",
       .class_name = "MistralForCausalLM",
       .is =
           [](const Parts& p) {
             return only(p, false, false) && p.all_windows && common_window(p);
           },
       .read = read_mistral,
       .write = write_mistral},
      {.type = "qwen2",
       .class_name = "Qwen2ForCausalLM",
       .is = [](const Parts& p) { return only(p, true, false) && !p.nope && common_window(p); },
       .read = read_some_windows,
       .write = write_some_windows,
       .qkv_bias = true},
      {.type = "qwen3",
       .class_name = "Qwen3ForCausalLM",
       .is = [](const Parts& p) { return only(p, false, true) && !p.nope && common_window(p); },
       .read = read_some_windows,
       .write = write_some_windows,
       .qk_norm = true,
       .defaults = {.head_width = 128}},
      {.type = "smollm3",
       .class_name = "SmolLM3ForCausalLM",
       .is = [](const Parts& p) { return only(p, false, false) && p.nope && common_window(p); },
       .read = read_smollm3,
       .write = write_smollm3,
       .defaults = {.rope_theta = 2e6, .tied = true}},
      {.type = "gemma3_text",
       .class_name = "Gemma3ForCausalLM",
       .is = [](const Parts& p) { return p.gemma && p.qk_norm && !p.qkv_bias && !p.nope; },
       .read = read_gemma3,
       .write = write_gemma3,
       .qk_norm = true,
       .own_rope = true,
       .defaults = {.heads = 8,
                    .kv_heads = 4,
                    .head_width = 256,
                    .tied = true,
                    .activation_key = "hidden_activation",
                    .activation = "gelu_pytorch_tanh"}},
      {.type = "gpt_oss",
       .class_name = "GptOssForCausalLM",
       .is = never,
       .read = read_gpt_oss,
       .write = write_nothing,
       .qkv_bias = true,
       .attention_bias = true,
       .defaults = {.head_width = 64, .rope_theta = 150000}},
      {.type = "mixtral",
       .class_name = "MixtralForCausalLM",
       .is = never,
       .read = read_mixtral,
       .write = write_nothing,
       .defaults = {.kv_heads = 8, .rope_theta = 1e6}},
      {.type = "qwen3_moe",
       .class_name = "Qwen3MoeForCausalLM",
       .is = never,
       .read = read_qwen3_moe,
       .write = write_nothing,
       .qk_norm = true},
  };
  return all;
}

const LlamaMember* member_of(const ModelConfig& model) {
  const std::optional<LlamaParts> parts = llama_parts(model);
  if (!parts) return nullptr;
  const auto found = std::find_if(members().begin(), members().end(),
                                  [&](const LlamaMember& member) { return member.is(*parts); });
  return found == members().end() ? nullptr : &*found;
}

// What all members have.
Json read_llama(const LlamaMember& member, const ConfigKeys& keys) {
  const ModelConfig plain;
  const LlamaDefaults& defaults = member.defaults;
  keys.only(defaults.activation_key, defaults.activation);
  keys.only("attention_bias", member.attention_bias);
  keys.only("mlp_bias", false);
  keys.only("partial_rotary_factor", 1.0);
  const int64_t width = keys.whole("hidden_size");
  const int64_t heads = defaults.heads > 0 ? keys.whole("num_attention_heads", defaults.heads)
                                           : keys.whole("num_attention_heads");
  const StoredRope rope = member.own_rope ? StoredRope() : read_rope(keys, defaults.rope_theta);
  const int64_t kv_heads = defaults.kv_heads > 0 ? defaults.kv_heads : heads;
  Json model = {{"layers", read_layer_count(keys)},
                {"width", width},
                {"heads", heads},
                {"kv_heads", keys.positive("num_key_value_heads", kv_heads)},
                {"head_width", keys.positive("head_dim", defaults.head_width)},
                {"ffn_width", keys.positive("intermediate_size")},
                {"norm_eps", keys.number("rms_norm_eps", plain.norm_eps)},
                {"rope_theta", rope.theta},
                {"rope_scaling", write_config(rope.scaling)},
                {"init_std", keys.number("initializer_range", plain.init_std)},
                {"tie_embeddings", keys.flag("tie_word_embeddings", defaults.tied)},
                {"depth_mixing", {{"type", "residual"}}}};
  model["grouped_query"] = {{"qkv_bias", member.qkv_bias}, {"qk_norm", member.qk_norm}};
  return model;
}

}  // namespace

std::string llama_family_type(const ModelConfig& model) {
  const LlamaMember* member = member_of(model);
  return member == nullptr ? "" : member->type;
}

std::vector<std::string> llama_family_types() {
  std::vector<std::string> types;
  for (const LlamaMember& member : members()) types.emplace_back(member.type);
  return types;
}

Json to_llama_family_json(const ModelConfig& model) {
  const LlamaMember& member = *member_of(model);
  const Json rope = rope_parameters_json({model.rope_theta, model.rope_scaling});
  Json json = {{"architectures", Json::array({member.class_name})},
               {"model_type", member.type},
               {"hidden_size", model.width},
               {"intermediate_size", model.ffn_width},
               {"num_hidden_layers", model.layers},
               {"num_attention_heads", model.heads},
               {"num_key_value_heads", model.kv_heads},
               {"head_dim", model.head_width},
               {"hidden_act", "silu"},
               {"attention_bias", false},
               {"attention_dropout", 0.0},
               {"mlp_bias", false},
               {"rms_norm_eps", model.norm_eps},
               {"rope_theta", model.rope_theta},
               {"rope_parameters", rope},
               {"initializer_range", model.init_std},
               {"use_cache", true},
               {"pad_token_id", nullptr}};
  if (!model.rope_scaling.is_none()) json["rope_scaling"] = rope;
  member.write(model, json);
  return json;
}

ModelConfig from_llama_family_json(const std::string& type, const ConfigKeys& keys) {
  const auto member =
      std::find_if(members().begin(), members().end(),
                   [&](const LlamaMember& candidate) { return type == candidate.type; });
  require(member != members().end(), "{}: model_type {} is none of Llama's family", keys.what(),
          one_line(type));
  Json model = read_llama(*member, keys);
  member->read(keys, model);
  return read_stored_model(
      model, keys, "as a model of attnres",
      with_common_names({{"experts.count", experts_key(keys)},
                         {"activation.limit", "swiglu_limit"},
                         {"sliding_window.rope_theta", "rope_theta of layers in a window"}}));
}

}  // namespace attnres
