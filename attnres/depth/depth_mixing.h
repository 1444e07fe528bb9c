// How the layers of a model are combined over depth: a mechanism and its settings, read once of a
// recipe's model.depth_mixing. Everything beyond that asks this value, never the recipe's words.
#pragma once

#include <any>
#include <memory>
#include <string>

#include "attnres/depth/mechanism.h"

namespace attnres {

class DepthMixing {
 public:
  DepthMixing();  // plain residual connections
  // `depth_mixing` names the mechanism as `type`; settings that it leaves out are the defaults in a
  // model of this shape. Throws UsageError naming the key.
  DepthMixing(const Json& depth_mixing, const MixerShape& shape);

  const MechanismText& text() const { return mechanism_->text; }
  const std::string& name() const { return text().name; }
  // The settings, where they are of this type, which the header of their mechanism has; else null.
  template <class Settings>
  const Settings* settings() const {
    return std::any_cast<Settings>(&settings_);
  }
  // As in a recipe, every default filled in: equal mixings have equal ones.
  Json to_json() const;

  // In a model of the shape that it was read for.
  std::unique_ptr<DepthMixer> make_mixer(const MixerShape& shape,
                                         ParameterRegistry& parameters) const;
  std::string formula(const MixerShape& shape) const;  // as the settings make it
  double traffic(const MixerShape& shape) const;       // of MechanismText, as a number

 private:
  const Mechanism* mechanism_;  // of the list
  std::any settings_;
};

bool operator==(const DepthMixing& a, const DepthMixing& b);
// For write_config.
void to_json(Json& json, const DepthMixing& mixing);

}  // namespace attnres
