// The options of the generate subcommand.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/options.h"
#include "attnres/infer/generate.h"

namespace attnres {

struct GenerateOptions {
  ModelOption model;
  MachineOptions machine;
  PrecisionOption precision;
  std::string prompt, prompt_file;
  std::optional<std::string> ids;
  bool truncate = false;
  GenerationSettings generation;        // its logit bias is that of `biases` once they are read
  std::vector<std::string> biases;      // "ID=NUMBER"
  std::vector<std::string> stop_texts;  // not empty
  bool json = false;

  void add_to(CLI::App& command);
  // Reads the biases and checks the settings. Throws UsageError that names the option.
  void finish();
};

}  // namespace attnres
