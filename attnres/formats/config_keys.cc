#include "attnres/formats/config_keys.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "attnres/formats/rope_json.h"
#include "attnres/support/format.h"
#include "attnres/support/nearest.h"

namespace attnres {

namespace {

int64_t read_within(const ConfigKeys& keys, const char* key, std::optional<int64_t> otherwise,
                    int64_t least, int64_t most) {
  const int64_t value = otherwise ? keys.whole(key, *otherwise) : keys.whole(key);
  require(value >= least && value <= most, "{}: {}: expected {} to {}, got {}", keys.what(), key,
          least, most, value);
  return value;
}

}  // namespace

int64_t read_layer_count(const ConfigKeys& keys) {
  return read_within(keys, "num_hidden_layers", {}, 1, 100000);
}

int64_t read_context(const ConfigKeys& keys, const char* key, std::optional<int64_t> otherwise) {
  return read_within(keys, key, otherwise, 2, kMostContext);
}

int64_t read_vocabulary(const ConfigKeys& keys, std::optional<int64_t> otherwise) {
  return read_within(keys, "vocab_size", otherwise, 1, INT32_MAX);
}

FileNames with_common_names(FileNames own) {
  static const FileNames names = {
      {"layers", "num_hidden_layers"},
      {"width", "hidden_size"},
      {"heads", "num_attention_heads"},
      {"kv_heads", "num_key_value_heads"},
      {"head_width", "head_dim"},
      {"ffn_width", "intermediate_size"},
      {"norm_eps", "rms_norm_eps"},
      {"rope_theta", "rope_theta"},
      {"rope_scaling.original_context", "original_max_position_embeddings"},
      {"rope_scaling", "rope_scaling"},
      {"init_std", "initializer_range"},
      {"sliding_window.window", "sliding_window"},
      {"latent_attention.kv_rank", "kv_lora_rank"},
      {"latent_attention.q_rank", "q_lora_rank"},
      {"latent_attention.key_width", "qk_nope_head_dim"},
      {"latent_attention.shared_key_width", "qk_rope_head_dim"},
      {"latent_attention.value_width", "v_head_dim"},
      {"experts.chosen", "num_experts_per_tok"},
      {"experts.width", "moe_intermediate_size"},
      {"experts.dense_layers", "first_k_dense_replace"},
      {"experts.scaling", "routed_scaling_factor"},
      {"experts.chosen_groups", "topk_group"}};
  own.insert(own.end(), names.begin(), names.end());
  return own;
}

namespace {

bool continues_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// With `to` for `from` where that is a whole name.
std::string with_name(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + 1)) {
    const size_t end = at + from.size();
    const bool is_part = (at > 0 && (continues_name(text[at - 1]) || text[at - 1] == '.')) ||
                         (end < text.size() && continues_name(text[end]));
    if (at < done || is_part) continue;
    out.append(text.substr(done, at - done)).append(to);
    done = end;
  }
  return out.append(text.substr(done));
}

}  // namespace

ModelConfig read_stored_model(const Json& model, const ConfigKeys& keys, const char* path,
                              const FileNames& names) {
  try {
    return read_model_config(model, path);
  } catch (const UsageError& e) {
    // A mechanism knows a recipe's name of its settings.
    std::string message =
        with_name(e.what(), "model.depth_mixing", fmt::format("{}.depth_mixing", path));
    for (const auto& [ours, theirs] : names) {
      message = with_name(message, fmt::format("{}.{}", path, ours), theirs);
      // Elsewhere words such as heads are words.
      const bool is_word = ours.find('_') == ours.npos;
      if (!is_word) message = with_name(message, ours, theirs);
    }
    if (const char* rope = rope_key(keys)) message = with_name(message, "rope_scaling", rope);
    fail("{}: {}", keys.what(), message);
  }
}

std::vector<std::string> ConfigKeys::misspelled() const {
  // Of others' configurations, and near to some that are read.
  static const std::set<std::string> kOthers = {"pad_token_id", "sep_token_id", "qkv_bias",
                                                "qk_head_dim", "dtype"};
  std::vector<std::string> absent, found;
  for (const std::string& key : *asked_) {
    if (!object_.contains(key)) absent.push_back(key);
  }
  for (const auto& [key, value] : object_.items()) {
    if (asked_->contains(key) || kOthers.contains(key)) continue;
    if (!did_you_mean(key, absent).empty()) {
      found.push_back(fmt::format("{} ({}?)", one_line(key), nearest(key, absent)));
    }
  }
  return found;
}

}  // namespace attnres
