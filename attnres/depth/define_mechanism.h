// A Mechanism from a settings struct and a mixer class. For the sources of mechanisms.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "attnres/depth/mechanism.h"
#include "attnres/support/config.h"

namespace attnres {

// Settings of a mechanism that has none.
struct NoSettings {
  template <class V>
  void visit(V&) {}
};

// Settings has visit(V&), check(const MixerShape&) if some values do not go together or with the
// shape, which throws UsageError, and a constructor from the shape if its defaults depend on it;
// Mixer is made of (settings, shape, parameters). Where settings change the formula, Settings has
// formula(const MixerShape&) too; where a recipe may say one of them in other words,
// visit_spellings(V&), which visits those, and respell(Json, const MixerShape&), which gives the
// usual ones. `traffic` evaluates `text.traffic` for (settings, shape), or is its value for all.
template <class Settings, class Mixer, class Traffic>
Mechanism define_mechanism(const MechanismText& text, Traffic traffic) {
  const auto defaults = [](const MixerShape& shape) {
    if constexpr (std::is_constructible_v<Settings, const MixerShape&>) {
      return Settings(shape);
    } else {
      return Settings();
    }
  };
  const auto check_settings = []([[maybe_unused]] const Settings& settings,
                                 [[maybe_unused]] const MixerShape& shape) {
    if constexpr (requires { settings.check(shape); }) settings.check(shape);
  };
  const auto parse = [defaults, check_settings](const Json& json,
                                                const MixerShape& shape) -> std::any {
    Settings settings = defaults(shape);
    if constexpr (requires { Settings::respell(json, shape); }) {
      read_config(Settings::respell(json, shape), "model.depth_mixing", settings);
    } else {
      read_config(json, "model.depth_mixing", settings);
    }
    check_settings(settings, shape);
    return settings;
  };
  const auto typed = [](const std::any& settings) -> const Settings& {
    return *std::any_cast<Settings>(&settings);
  };
  ConfigLister spellings;
  if constexpr (requires { Settings::visit_spellings(spellings); }) {
    Settings::visit_spellings(spellings);
  }
  return {.text = text,
          .settings = list_keys(defaults({})),
          .spellings = spellings.keys,
          .parse = parse,
          .write = [typed](const std::any& settings) { return write_config(typed(settings)); },
          .make = [typed, check_settings](
                      const std::any& settings, const MixerShape& shape,
                      ParameterRegistry& parameters) -> std::unique_ptr<DepthMixer> {
            check_settings(typed(settings), shape);
            return std::make_unique<Mixer>(typed(settings), shape, parameters);
          },
          .formula = [typed, formula = text.formula](
                         [[maybe_unused]] const std::any& settings,
                         [[maybe_unused]] const MixerShape& shape) -> std::string {
            if constexpr (requires(const Settings& some) { some.formula(shape); }) {
              return typed(settings).formula(shape);
            } else {
              return formula;
            }
          },
          .traffic = [typed, traffic]([[maybe_unused]] const std::any& settings,
                                      [[maybe_unused]] const MixerShape& shape) -> double {
            if constexpr (std::is_arithmetic_v<Traffic>) {
              return traffic;
            } else {
              return traffic(typed(settings), shape);
            }
          }};
}

}  // namespace attnres
