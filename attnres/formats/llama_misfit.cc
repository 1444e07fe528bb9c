#include "attnres/formats/llama_misfit.h"

#include <fmt/core.h>

#include "attnres/formats/gemma_scales.h"
#include "attnres/layers/attention.h"

namespace attnres {

std::string why_not_llama_family(const ModelConfig& model) {
  const auto& heads = model.settings<GroupedQuerySettings>();
  const auto misfit = [](const char* key, const auto& value, const std::string& known) {
    return fmt::format("model.{} is {}, but {}", key, value, known);
  };
  const bool has_window = model.has_attention(kSlidingWindow),
             has_nope = model.has_attention(kNope);
  const char* of_gpt_oss = "only gpt-oss has it, with experts";
  if (heads.output_bias) return misfit("grouped_query.output_bias", true, of_gpt_oss);
  if (heads.sinks) return misfit("grouped_query.sinks", true, of_gpt_oss);
  if (model.output_norm) {
    const std::string gemma = "Gemma 3, which has output_norm, has ";
    const auto& type = model.activation.type;
    if (type != "gelu_tanh") return misfit("activation.type", type, gemma + "gelu_tanh");
    if (!has_gemma_embedding_scale(model)) {
      return misfit("embedding_scale", model.embedding_scale,
                    gemma + fmt::format("sqrt(width), {}", gemma_embedding_scale(model.width)));
    }
    if (!has_whole_score_scale(model)) {
      return misfit("grouped_query.score_scale", heads.score_scale,
                    gemma + "1 / sqrt(n), n a whole number");
    }
    if (!heads.qk_norm) return misfit("grouped_query.qk_norm", false, gemma + "true");
    if (heads.qkv_bias) return misfit("grouped_query.qkv_bias", true, gemma + "false");
    return misfit("attention", kNope, gemma + "positions in every layer");
  }
  const std::string plain = "models without output_norm have ";
  const double theta = model.settings<SlidingWindowSettings>().rope_theta;
  if (model.activation.type != "silu") {
    return misfit("activation.type", model.activation.type, plain + "silu");
  }
  if (model.embedding_scale != 1) {
    return misfit("embedding_scale", model.embedding_scale, plain + "1");
  }
  if (heads.score_scale != 0) {
    return misfit("grouped_query.score_scale", heads.score_scale, plain + "0");
  }
  if (has_window && theta > 0) return misfit("sliding_window.rope_theta", theta, plain + "0");
  if (heads.qkv_bias && heads.qk_norm) {
    return misfit("grouped_query.qkv_bias", true, "Qwen 3, which has qk_norm, has false");
  }
  const char* smollm = "SmolLM 3, which has nope, has false";
  if (has_nope && heads.qkv_bias) return misfit("grouped_query.qkv_bias", true, smollm);
  if (has_nope && heads.qk_norm) return misfit("grouped_query.qk_norm", true, smollm);
  return misfit("attention", "sliding_window in some layers",
                "Mistral has it in every layer, and others have biases, norms or nope beside it");
}

}  // namespace attnres
