// The files of a model directory beside weights and tokenizer.
#pragma once

namespace attnres {

inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kGenerationFile = "generation_config.json";

}  // namespace attnres
