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

constexpr const char *kTemperature = "temperature", *kTopK = "top_k", *kTopP = "top_p",
                     *kMinP = "min_p", *kRepetitionPenalty = "repetition_penalty";

SamplingDefaults defaults_of_file(const std::filesystem::path& path,
                                  const std::set<std::string>& chosen) {
  const Json json = read_json(path);
  const ConfigKeys keys(json, path.string());
  const auto is_said = [&](const char* key) { return !chosen.contains(key) && !keys.missing(key); };
  const auto number = [&](const char* key) {
    return is_said(key) ? std::optional(keys.number(key, 0)) : std::nullopt;
  };
  SamplingDefaults defaults = {.temperature = number(kTemperature),
                               .top_p = number(kTopP),
                               .min_p = number(kMinP),
                               .repetition_penalty = number(kRepetitionPenalty)};
  if (is_said(kTopK)) defaults.top_k = std::max<int64_t>(keys.whole(kTopK), 0);
  const bool is_greedy = !chosen.contains(kTemperature) && !keys.flag("do_sample", true);
  if (is_greedy) defaults.temperature = 0;
  SamplingSettings settings;
  defaults.apply_to(settings);
  try {
    check(settings);
  } catch (const UsageError& e) {
    fail("{}: {}", path.string(), e.what());
  }
  return defaults;
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

SamplingDefaults read_sampling_defaults(const std::filesystem::path& model,
                                        const std::set<std::string>& chosen) {
  const std::filesystem::path path = model / kGenerationFile;
  const std::set<std::string> all = {kTemperature, kTopK, kTopP, kMinP, kRepetitionPenalty};
  const bool is_needed = !std::includes(chosen.begin(), chosen.end(), all.begin(), all.end());
  if (!is_needed || !path_exists(path)) return {};
  try {
    return defaults_of_file(path, chosen);
  } catch (const Error& e) {
    fail("{}; mend the file, or do without what it says of sampling: --generation-config none",
         e.what());
  }
}

}  // namespace attnres
