#include "attnres/infer/sampling_defaults.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "attnres/formats/config_keys.h"
#include "attnres/infer/sampling.h"
#include "attnres/pretrained/directory_files.h"
#include "attnres/support/file.h"

namespace attnres {
namespace {

std::optional<double> number_of(const ConfigKeys& keys, const char* key) {
  if (keys.missing(key)) return std::nullopt;
  return keys.number(key, 0);
}

}  // namespace

void SamplingDefaults::apply_to(SamplingSettings& settings) const {
  settings.temperature = temperature.value_or(settings.temperature);
  settings.top_k = top_k.value_or(settings.top_k);
  settings.top_p = top_p.value_or(settings.top_p);
  settings.min_p = min_p.value_or(settings.min_p);
  settings.repetition_penalty = repetition_penalty.value_or(settings.repetition_penalty);
}

std::string SamplingDefaults::description() const {
  std::vector<std::string> said;
  const auto say = [&](const char* name, const auto& value) {
    if (value) said.push_back(fmt::format("{} {}", name, *value));
  };
  say("temperature", temperature);
  say("top-k", top_k);
  say("top-p", top_p);
  say("min-p", min_p);
  say("repetition-penalty", repetition_penalty);
  return fmt::format("{}", fmt::join(said, ", "));
}

SamplingDefaults read_sampling_defaults(const std::filesystem::path& model) {
  const std::filesystem::path path = model / kGenerationFile;
  if (!path_exists(path)) return {};
  const Json json = read_json(path);
  const ConfigKeys keys(json, path.string());
  SamplingDefaults defaults = {.temperature = number_of(keys, "temperature"),
                               .top_p = number_of(keys, "top_p"),
                               .min_p = number_of(keys, "min_p"),
                               .repetition_penalty = number_of(keys, "repetition_penalty")};
  if (!keys.missing("top_k")) defaults.top_k = std::max<int64_t>(keys.whole("top_k"), 0);
  if (!keys.flag("do_sample", true)) defaults.temperature = 0;
  SamplingSettings settings;
  defaults.apply_to(settings);
  try {
    check(settings);
  } catch (const UsageError& e) {
    fail("{}: {}", path.string(), e.what());
  }
  return defaults;
}

}  // namespace attnres
