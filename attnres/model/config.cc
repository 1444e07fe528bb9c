#include "attnres/model/config.h"

#include "attnres/support/config.h"

namespace attnres {
namespace {

constexpr int64_t kLargestDimension = int64_t{1} << 20;

void check_dimension(const std::string& path, const char* key, int64_t value, int64_t least = 1) {
  require_usage(value >= least && value <= kLargestDimension,
                "{}.{}: expected a whole number from {} to {}, got {}", path, key, least,
                kLargestDimension, value);
}

}  // namespace

ModelConfig read_model_config(const Json& json, const std::string& path) {
  ModelConfig config;
  read_config(json, path, config);

  check_dimension(path, "layers", config.layers);
  check_dimension(path, "width", config.width);
  check_dimension(path, "heads", config.heads);
  check_dimension(path, "kv_heads", config.kv_heads, 0);
  check_dimension(path, "ffn_width", config.ffn_width, 0);
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.ffn_width == 0) config.ffn_width = (config.width * 8 / 3 + 15) / 16 * 16;

  require_usage(config.width % config.heads == 0, "{}.width: {} is not divisible by {} heads", path,
                config.width, config.heads);
  require_usage(config.width / config.heads % 2 == 0,
                "{}.heads: rotary positions need an even head width, {} / {} is {}", path,
                config.width, config.heads, config.width / config.heads);
  require_usage(config.heads % config.kv_heads == 0,
                "{}.kv_heads: {} heads are not divisible by {}", path, config.heads,
                config.kv_heads);
  require_usage(config.norm_eps > 0, "{}.norm_eps: expected more than 0, got {}", path,
                config.norm_eps);
  require_usage(config.rope_theta > 0, "{}.rope_theta: expected more than 0, got {}", path,
                config.rope_theta);
  require_usage(config.init_std >= 0, "{}.init_std: expected 0 or more, got {}", path,
                config.init_std);
  config.depth_mixing = resolve_depth_mixing(config.depth_mixing, config.mixer_shape());
  return config;
}

}  // namespace attnres
