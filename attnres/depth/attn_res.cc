#include "attnres/depth/attn_res.h"

#include <nlohmann/json.hpp>

#include "attnres/depth/block_attn_res.h"
#include "attnres/support/config.h"

namespace attnres {
namespace {

struct FullSettings : AttnResSettings {
  template <class V>
  void visit(V& v) {
    v("norm_eps", norm_eps);
  }
};

FullSettings parse(const Json& json, const MixerShape& shape) {
  FullSettings settings;
  read_config(json, "model.depth_mixing", settings);
  check(settings, shape);
  return settings;
}

}  // namespace

Mechanism attn_res_mechanism() {
  return {.name = "attn_res",
          .formula = "h_l = sum_i softmax_i(w_l . (g_l * RMS(v_i))) v_i over v_0 .. v_l",
          .source = "Full Attention Residuals, arXiv 2603.15031, Eqs. 2 to 4",
          .resolve = [](const Json& json,
                        const MixerShape& shape) { return write_config(parse(json, shape)); },
          .make =
              [](const Json& json, const MixerShape& shape, ParameterRegistry& parameters) {
                return make_attn_res_mixer(parse(json, shape), shape, parameters);
              }};
}

}  // namespace attnres
