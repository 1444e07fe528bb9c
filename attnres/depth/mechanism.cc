#include "attnres/depth/mechanism.h"

#include <nlohmann/json.hpp>

#include "attnres/depth/attn_res.h"
#include "attnres/depth/block_attn_res.h"
#include "attnres/depth/residual.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

std::string type_of(const Json& depth_mixing) {
  const auto type = depth_mixing.find("type");
  require_usage(type != depth_mixing.end() && type->is_string(),
                "model.depth_mixing.type: expected the name of a mechanism, got {}",
                depth_mixing.dump());
  return type->get<std::string>();
}

// The mechanism's own settings: all but its name.
Json settings_of(const Json& depth_mixing) {
  Json settings = depth_mixing;
  settings.erase("type");
  return settings;
}

}  // namespace

const std::vector<Mechanism>& mechanisms() {
  static const std::vector<Mechanism> all = {
      residual_mechanism(),
      attn_res_mechanism(),
      block_attn_res_mechanism(),
  };
  return all;
}

const Mechanism& find_mechanism(const Json& depth_mixing) {
  const std::string type = type_of(depth_mixing);
  std::string known;
  for (const Mechanism& mechanism : mechanisms()) {
    if (mechanism.name == type) return mechanism;
    known += (known.empty() ? "" : ", ") + mechanism.name;
  }
  fail_usage("model.depth_mixing.type: there is no mechanism {}; choose one of: {}", type, known);
}

Json resolve_depth_mixing(const Json& depth_mixing, const MixerShape& shape) {
  const Mechanism& mechanism = find_mechanism(depth_mixing);
  Json resolved = {{"type", mechanism.name}};
  resolved.update(mechanism.resolve(settings_of(depth_mixing), shape));
  return resolved;
}

std::unique_ptr<DepthMixer> make_mixer(const Json& depth_mixing, const MixerShape& shape,
                                       ParameterRegistry& parameters) {
  const Mechanism& mechanism = find_mechanism(depth_mixing);
  return mechanism.make(mechanism.resolve(settings_of(depth_mixing), shape), shape, parameters);
}

}  // namespace attnres
