// The mechanisms that a recipe can name in model.depth_mixing.type.
#pragma once

#include <any>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attnres/depth/depth_mixer.h"
#include "attnres/parameters/parameters.h"
#include "attnres/support/config_key.h"
#include "attnres/support/json.h"

namespace attnres {

// What every mixer needs to know of the model around it.
struct MixerShape {
  int64_t width = 0;  // d
  int sublayers = 0;  // L
  double norm_eps = 1e-6;
  int64_t heads = 1;     // H of an attention
  int64_t kv_heads = 1;  // Hkv
  double init_std = 0.02;
  int64_t attention_head_width = 0;  // K of its heads; 0 stands for d / H

  int layers() const { return sublayers / 2; }  // J, Transformer layers
  int64_t head_width() const {
    return attention_head_width > 0 ? attention_head_width : width / heads;
  }
};

// The tensors of one parameter role, for people who read or write them elsewhere: shape and
// meaning, and the order of rows where there are several.
struct RoleText {
  std::string role;
  std::string text;  // "[d]: lambda_l"
};

// The text of the norm before a sublayer, which most mechanisms have.
RoleText input_norm_role();

// What people read of a mechanism: a line each, and what they need to write it anew.
struct MechanismText {
  std::string name;     // as in the recipe
  std::string formula;  // with the settings' defaults
  std::string start;    // how its parameters start, and what it then is
  std::string source;   // paper and equation
  // Numbers that the mixing of one site reads and writes per token, in units of d, if each pass
  // over the channels is one fused pass; the norm before the sublayer not counted. As in Table 1 of
  // arXiv 2603.15031.
  std::string traffic;
  // Sentences: with the formula and the roles, all that a site computes (but for the symbols that
  // docs/mechanisms.md explains).
  std::string details;
  std::vector<RoleText> roles;  // of all its parameters, whatever the settings
};

// What a recipe can name. A DepthMixing (depth_mixing.h) is one with its settings.
struct Mechanism {
  MechanismText text;
  std::vector<ConfigKey> settings;
  std::vector<ConfigKey> spellings;  // keys that say one of them in other words
  // A value of the mechanism's settings struct, every default filled in. Throws UsageError on
  // unknown keys and bad values.
  std::function<std::any(const Json& settings, const MixerShape&)> parse;

  // These take what `parse` returned.
  std::function<Json(const std::any& settings)> write;
  // Adds its parameters to the registry. Throws UsageError on settings for another shape.
  std::function<std::unique_ptr<DepthMixer>(const std::any& settings, const MixerShape&,
                                            ParameterRegistry&)>
      make;
  // `text.formula` as these settings change it.
  std::function<std::string(const std::any& settings, const MixerShape&)> formula;
  // `text.traffic` for these settings and a shape, the mean over the sites of the sublayers.
  std::function<double(const std::any& settings, const MixerShape&)> traffic;
};

const std::vector<Mechanism>& mechanisms();
std::vector<std::string> mechanism_names();

// Gives the key of a recipe's depth_mixing what it has: `type`, and with each of its values the
// settings of that mechanism.
void add_mechanism_keys(ConfigKey& depth_mixing);

// The mechanism that `depth_mixing.type` names. Throws UsageError with the list if there is none.
const Mechanism& find_mechanism(const Json& depth_mixing);

}  // namespace attnres
