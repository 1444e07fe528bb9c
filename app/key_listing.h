// Every key of recipes and studies, as `--keys` of train and study shows them.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "attnres/support/config_key.h"
#include "attnres/support/json.h"

namespace attnres {

struct KeyListingOptions {
  std::string beginning;  // of the keys to show: "model.depth_mixing"; empty for all
  bool schema = false;
  CLI::Option* keys = nullptr;

  // Adds --keys and --schema to a command about `what` ("recipe").
  void add_to(CLI::App& command, const std::string& what);
  bool is_asked() const { return keys->count() > 0; }
};

// Prints them, or the schema where that is asked. Throws UsageError where no key begins so.
void show_keys(const KeyListingOptions& options, const std::vector<ConfigKey>& keys,
               const Json& schema, bool json);

// docs/recipe.md.
void print_keys_page();

}  // namespace attnres
