// How a model's authors would have it sampled: what its generation_config.json says of that.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "attnres/infer/generation_settings.h"

namespace attnres {

// What there is takes the place of settings that nobody chose.
struct SamplingDefaults {
  std::optional<double> temperature = {}, top_p = {}, min_p = {}, repetition_penalty = {};
  std::optional<int64_t> top_k = {};

  void apply_to(SamplingSettings& settings) const;
  // "temperature 0.6, top-p 0.9"; empty where there is nothing.
  std::string description() const;
};

// Those of a model directory; none without the file, and of a GGUF file. `do_sample: false` is a
// temperature of 0, a top_k of -1 all tokens. The keys in `chosen` (temperature, top_k, top_p,
// min_p and repetition_penalty) are not looked at, since others say them; nor is the file where
// these are all. Throws Error, naming file and key and what to do, on what is no such number, and
// on settings that do not exist (sampling.h, `check`).
SamplingDefaults read_sampling_defaults(const std::filesystem::path& model,
                                        const std::set<std::string>& chosen = {});

}  // namespace attnres
