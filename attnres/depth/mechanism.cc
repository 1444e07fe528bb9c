#include "attnres/depth/mechanism.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/nearest.h"

namespace attnres {
namespace {

std::string type_of(const Json& depth_mixing) {
  if (depth_mixing.is_string()) {
    fail_usage(
        "model.depth_mixing: a mechanism stands in type, beside its settings; write "
        "model.depth_mixing.type={} with --set, {{\"type\": {}}} in a recipe",
        one_line(depth_mixing.get<std::string>()), shown(depth_mixing));
  }
  const auto type = depth_mixing.find("type");
  require_usage(type != depth_mixing.end() && type->is_string(),
                "model.depth_mixing.type: expected the name of a mechanism, got {}",
                shown(depth_mixing));
  return type->get<std::string>();
}

}  // namespace

RoleText input_norm_role() {
  return {"input_norm", "[d]: gain of x_l = norm(h_l)"};
}

const std::vector<Mechanism>& mechanisms() {
  static const std::vector<Mechanism> all = {
      residual_mechanism(),
      attn_res_mechanism(),
      block_attn_res_mechanism(),
      delta_attn_res_mechanism(),
      post_norm_mechanism(),
      hybrid_norm_mechanism(),
      rezero_mechanism(),
      layer_scale_mechanism(),
      highway_mechanism(),
      deep_norm_mechanism(),
      keel_mechanism(),
      siamese_norm_mechanism(),
      hyper_connections_mechanism(),
      mhc_mechanism(),
      mhc_lite_mechanism(),
      hc_identity_mechanism(),
      gated_residual_mechanism(),
      deep_delta_mechanism(),
      dense_net_mechanism(),
      dense_former_mechanism(),
      ancre_mechanism(),
      mrla_mechanism(),
      sknet_mechanism(),
      muddformer_mechanism(),
      dca_mechanism(),
      depth_attention_mechanism(),
      value_residual_mechanism(),
      lime_mechanism(),
      laurel_mechanism(),
      scalar_mix_mechanism(),
  };
  return all;
}

std::vector<std::string> mechanism_names() {
  std::vector<std::string> names;
  for (const Mechanism& mechanism : mechanisms()) names.push_back(mechanism.text.name);
  return names;
}

void add_mechanism_keys(ConfigKey& depth_mixing) {
  Limits types = one_of_names(mechanism_names());
  types.required = true;
  depth_mixing.keys = {{.name = "type",
                        .type = KeyType::text,
                        .meaning = "a mechanism; without depth_mixing it is residual",
                        .limits = types}};
  for (const Mechanism& mechanism : mechanisms()) {
    ConfigVariant& variant = depth_mixing.variants.emplace_back(
        ConfigVariant{mechanism.text.name, mechanism.text.source, mechanism.settings});
    variant.keys.insert(variant.keys.end(), mechanism.spellings.begin(), mechanism.spellings.end());
  }
}

const Mechanism& find_mechanism(const Json& depth_mixing) {
  const std::string type = type_of(depth_mixing);
  for (const Mechanism& mechanism : mechanisms()) {
    if (mechanism.text.name == type) return mechanism;
  }
  const std::vector<std::string> known = mechanism_names();
  const std::string near = did_you_mean(type, known);
  fail_usage("model.depth_mixing.type: there is no mechanism {}{}", one_line(type),
             near.empty() ? fmt::format("; choose one of: {}", fmt::join(known, ", "))
                          : near + " attnres mechanisms lists all");
}

}  // namespace attnres
