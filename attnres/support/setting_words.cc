#include "attnres/support/setting_words.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "attnres/support/nearest.h"

namespace attnres {
namespace {

using Words = std::vector<std::string>;

// Our words, and those of others for them.
const std::vector<std::pair<const char*, Words>>& others_words() {
  static const std::vector<std::pair<const char*, Words>> all = {
      {"accumulate",
       {"grad_accum", "grad_accum_steps", "gradient_accumulation", "gradient_accumulation_steps"}},
      {"activation", {"act", "hidden_act", "hidden_activation", "nonlinearity"}},
      {"batch_size",
       {"batch", "bs", "global_batch_size", "micro_batch_size", "per_device_train_batch_size"}},
      {"beta1", {"adam_beta1", "beta_1"}},
      {"beta2", {"adam_beta2", "beta_2"}},
      {"block_size", {"block"}},
      {"checkpoint_every", {"ckpt_every", "checkpoint_interval", "save_every", "save_steps"}},
      {"chosen", {"experts_per_token", "num_experts_per_tok", "top_k"}},
      {"clip", {"clip_grad", "clip_norm", "grad_clip", "gradient_clip", "max_grad_norm"}},
      {"context",
       {"context_length", "ctx", "ctx_len", "max_length", "max_position_embeddings", "max_seq_len",
        "max_seq_length", "n_ctx", "seq_len", "seq_length", "sequence_length"}},
      {"count", {"n_experts", "n_routed_experts", "num_experts"}},
      {"depth_mixing", {"connection", "depth_mixer", "mechanism", "mixer", "mixing"}},
      {"epsilon", {"adam_eps", "adam_epsilon", "eps"}},
      {"eval_every", {"eval_interval", "eval_steps", "val_interval", "validate_every"}},
      {"ffn_width",
       {"d_ff", "ffn", "ffn_dim", "ffn_hidden_size", "intermediate_size", "mlp_dim", "mlp_width"}},
      {"final_fraction", {"final_lr", "min_lr", "min_lr_ratio"}},
      {"head_width", {"d_head", "head_dim", "head_size"}},
      {"heads", {"n_head", "n_heads", "num_attention_heads", "num_heads"}},
      {"init_std", {"init_scale", "initializer_range"}},
      {"kind", {"tokenizer_type", "type"}},
      {"kv_heads", {"n_kv_heads", "num_key_value_heads", "num_kv_heads"}},
      {"layers", {"depth", "n_layer", "n_layers", "num_hidden_layers", "num_layers"}},
      {"learning_rate", {"lr", "max_lr", "peak_lr"}},
      {"muon_momentum", {"momentum"}},
      {"norm_eps", {"eps", "layer_norm_eps", "rms_norm_eps"}},
      {"num_blocks", {"blocks", "n_block", "n_blocks"}},
      {"optimizer", {"opt", "optim"}},
      {"pipeline", {"pipeline_parallel", "pp"}},
      {"precision", {"amp", "dtype", "mixed_precision"}},
      {"recompute", {"activation_checkpointing", "gradient_checkpointing"}},
      {"rope_theta", {"rope_base", "rope_freq_base", "theta"}},
      {"schedule", {"lr_schedule", "lr_scheduler", "lr_scheduler_type", "scheduler"}},
      {"seed", {"random_seed"}},
      {"steps",
       {"iterations", "iters", "max_iters", "max_steps", "n_steps", "num_steps", "total_steps"}},
      {"tensor", {"tensor_parallel", "tp"}},
      {"tie_embeddings", {"tie_weights", "tie_word_embeddings", "tied", "weight_tying"}},
      {"validation_fraction", {"test_size", "val_fraction", "val_split", "validation_split"}},
      {"vocab_size", {"n_vocab", "vocab", "vocabulary", "vocabulary_size"}},
      {"warmup", {"num_warmup_steps", "warmup_iters", "warmup_ratio", "warmup_steps"}},
      {"weight_decay", {"wd"}},
      {"width",
       {"d_model", "dim", "embed_dim", "embedding_dim", "embedding_length", "hidden", "hidden_dim",
        "hidden_size", "model_dim", "n_embd"}},
  };
  return all;
}

std::map<std::string, Words> by_others_word() {
  std::map<std::string, Words> words;
  for (const auto& [ours, others] : others_words()) {
    for (const std::string& other : others) words[other].emplace_back(ours);
  }
  return words;
}

}  // namespace

const std::vector<std::string>& words_for_setting(std::string_view word) {
  static const std::map<std::string, Words> words = by_others_word();
  static const Words none;
  std::string plain(word);
  std::transform(plain.begin(), plain.end(), plain.begin(), [](unsigned char c) {
    return c == '-' ? '_' : static_cast<char>(std::tolower(c));
  });
  const auto found = words.find(plain);
  return found == words.end() ? none : found->second;
}

std::string nearest_setting(const std::string& word, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), word) != known.end()) return word;
  const std::vector<std::string>& meant = words_for_setting(word);
  const auto ours = std::find_first_of(meant.begin(), meant.end(), known.begin(), known.end());
  return ours != meant.end() ? *ours : nearest(word, known);
}

}  // namespace attnres
