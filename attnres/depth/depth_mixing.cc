#include "attnres/depth/depth_mixing.h"

#include <nlohmann/json.hpp>

#include "attnres/parameters/mixer_parameters.h"

namespace attnres {
namespace {

// The mechanism's own settings: all but its name.
Json without_name(Json depth_mixing) {
  depth_mixing.erase("type");
  return depth_mixing;
}

}  // namespace

DepthMixing::DepthMixing() : DepthMixing({{"type", "residual"}}, MixerShape()) {}

DepthMixing::DepthMixing(const Json& depth_mixing, const MixerShape& shape)
    : mechanism_(&find_mechanism(depth_mixing)),
      settings_(mechanism_->parse(without_name(depth_mixing), shape)) {}

Json DepthMixing::to_json() const {
  Json json = {{"type", name()}};
  json.update(mechanism_->write(settings_));
  return json;
}

std::unique_ptr<DepthMixer> DepthMixing::make_mixer(const MixerShape& shape,
                                                    ParameterRegistry& parameters) const {
  const AddingOfMixer adding(parameters);
  return mechanism_->make(settings_, shape, parameters);
}

std::string DepthMixing::formula(const MixerShape& shape) const {
  return mechanism_->formula(settings_, shape);
}

double DepthMixing::traffic(const MixerShape& shape) const {
  return mechanism_->traffic(settings_, shape);
}

bool operator==(const DepthMixing& a, const DepthMixing& b) {
  return a.to_json() == b.to_json();
}

void to_json(Json& json, const DepthMixing& mixing) {
  json = mixing.to_json();
}

}  // namespace attnres
