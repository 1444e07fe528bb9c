#include "app/key_listing.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "app/options.h"
#include "attnres/study/study_recipe.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/nearest.h"
#include "attnres/support/terminal.h"
#include "attnres/train/recipe/recipe.h"

namespace attnres {
namespace {

struct ListedKey {
  std::string path;  // "model.layers"
  ConfigKey key;
};

// The keys of one object.
struct KeyGroup {
  std::string path;       // of the object: "model"; empty for the file
  std::string meaning;    // of the object
  std::string mechanism;  // as whose settings they are there; empty where they are not
  std::vector<ListedKey> keys;
};

// The object's own keys come first, then the objects in it.
void add_groups(std::vector<KeyGroup>& groups, KeyGroup group, const std::vector<ConfigKey>& keys) {
  const std::string prefix = group.path.empty() ? "" : group.path + ".";
  std::vector<std::pair<std::string, ConfigKey>> objects;
  for (const ConfigKey& key : keys) {
    const std::string path = prefix + key.name;
    const bool is_object = !key.keys.empty() || !key.variants.empty();
    const bool is_part = is_object && key.type == KeyType::object;
    if (!is_part || key.limits.required) group.keys.push_back({path, key});
    if (is_object) objects.emplace_back(path + (key.type == KeyType::objects ? "[]" : ""), key);
  }
  if (!group.keys.empty()) groups.push_back(group);
  for (const auto& [path, object] : objects) {
    add_groups(groups, {path, object.meaning, "", {}}, object.keys);
    for (const ConfigVariant& variant : object.variants) {
      add_groups(groups, {path, variant.meaning, variant.type, {}}, variant.keys);
    }
  }
}

std::vector<KeyGroup> groups_of(const std::vector<ConfigKey>& keys) {
  std::vector<KeyGroup> groups;
  add_groups(groups, {}, keys);
  return groups;
}

// "a whole number from 1 to 1024", "number, 0 or more".
std::string values_of(const ConfigKey& key) {
  const std::string limits = describe(key.limits, key.type == KeyType::whole);
  const bool says_type =
      limits.starts_with("a whole") || (key.type == KeyType::text && !key.limits.choices.empty());
  if (says_type) return limits;
  if (limits.empty()) return describe(key.type);
  if (key.type == KeyType::number_or_word) return "number, " + limits;
  const bool is_one = key.type == KeyType::number || key.type == KeyType::whole;
  return fmt::format("{}, {}{}", describe(key.type), is_one ? "" : "each ", limits);
}

// What holds where a key is left out.
std::string default_of(const ConfigKey& key) {
  if (key.limits.required) return "required";
  return key.limits.otherwise.empty() ? key.standard : key.limits.otherwise;
}

std::string sentence(std::string text) {
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text + ".";
}

void print_group(const KeyGroup& group) {
  constexpr size_t kIndent = 4;
  const size_t columns = text_columns();
  std::string title = group.path;
  if (!group.mechanism.empty()) title += fmt::format(", type {}", group.mechanism);
  if (!title.empty()) fmt::print("{}\n\n", wrapped(title + ": " + group.meaning, columns, 2));
  for (const auto& [path, key] : group.keys) {
    const std::string otherwise = default_of(key);
    const bool is_value = otherwise == key.standard && !otherwise.empty();
    const std::string line = is_value            ? fmt::format("{} = {}", path, otherwise)
                             : otherwise.empty() ? path
                             : key.limits.required
                                 ? fmt::format("{} (required)", path)
                                 : fmt::format("{} (if left out: {})", path, otherwise);
    fmt::print("  {}\n    {}\n    {}\n", line, wrapped(key.meaning, columns, kIndent),
               wrapped(values_of(key), columns, kIndent));
  }
  fmt::print("\n");
}

Json to_json(const KeyGroup& group, const ListedKey& listed) {
  const ConfigKey& key = listed.key;
  Json json = {
      {"key", listed.path}, {"type", describe(key.type)}, {"required", key.limits.required}};
  if (!group.mechanism.empty()) json["mechanism"] = group.mechanism;
  if (key.limits.otherwise.empty() && !key.standard.empty() && !key.limits.required) {
    json["default"] = Json::parse(key.standard);
  } else if (!key.limits.otherwise.empty()) {
    json["if_left_out"] = key.limits.otherwise;
  }
  if (!std::isinf(key.limits.least)) json[key.limits.above ? "above" : "least"] = key.limits.least;
  if (!std::isinf(key.limits.most)) json[key.limits.below ? "below" : "most"] = key.limits.most;
  for (const Choice& choice : key.limits.choices) {
    json["choices"].push_back({{"value", choice.name}, {"meaning", choice.meaning}});
  }
  json["meaning"] = key.meaning;
  return json;
}

std::vector<KeyGroup> those_that_begin(const std::string& beginning, std::vector<KeyGroup> groups) {
  std::vector<std::string> known;
  for (KeyGroup& group : groups) {
    known.push_back(group.path);
    for (const ListedKey& listed : group.keys) known.push_back(listed.path);
    std::erase_if(group.keys,
                  [&](const ListedKey& key) { return !key.path.starts_with(beginning); });
  }
  std::erase_if(groups, [](const KeyGroup& group) { return group.keys.empty(); });
  if (!groups.empty()) return groups;
  const auto nearest =
      std::min_element(known.begin(), known.end(), [&](const std::string& a, const std::string& b) {
        return edit_distance(beginning, a) < edit_distance(beginning, b);
      });
  fail_usage("--keys {}: no key begins so; the nearest is {}", one_line(beginning), *nearest);
}

std::string escaped_cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|' || c == '<' || c == '*') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

void print_tables(const std::vector<ConfigKey>& keys) {
  for (const KeyGroup& group : groups_of(keys)) {
    if (group.mechanism.empty() && !group.path.empty()) {
      fmt::print("\n### `{}`\n\n{}\n", group.path, escaped_cell(sentence(group.meaning)));
    } else if (!group.mechanism.empty()) {
      fmt::print("\nWith `type` `{}` ({}):\n", group.mechanism, escaped_cell(group.meaning));
    }
    fmt::print("\n| key | default | may be | meaning |\n| --- | --- | --- | --- |\n");
    for (const auto& [path, key] : group.keys) {
      const std::string name = path.substr(group.path.empty() ? 0 : group.path.size() + 1);
      const std::string otherwise = default_of(key);
      const bool is_value = otherwise == key.standard && !otherwise.empty();
      fmt::print("| `{}` | {} | {} | {} |\n", name,
                 is_value ? fmt::format("`{}`", otherwise) : escaped_cell(otherwise),
                 escaped_cell(values_of(key)), escaped_cell(key.meaning));
    }
  }
}

constexpr const char* kPage = R"(# Every key of recipes and studies

Written by `attnres train --keys --markdown`; do not edit.

A recipe is a JSON object; every key may be left out. `--set train.steps=200` overrides one on the
command line. `attnres train --keys` shows this page in the terminal, `attnres train --keys
model.experts` a part of it, and `--json` makes it something for programs. What these keys do is in
[data.md](data.md), [tokenizers.md](tokenizers.md), [mechanisms.md](mechanisms.md) and
[parallel.md](parallel.md); [studies.md](studies.md) is about studies.

Editors complete and check a file that names its schema: `"$schema": "schemas/recipe.json"` in a
recipe of `recipes/`, `"$schema": "../schemas/study.json"` in a study of `recipes/studies/`. The
program takes the key and reads no schema. Some limits are between keys, or come from the model (a
`block_size` is at most the number of sublayers): the schemas do not know these, the program says
them.
)";

}  // namespace

void KeyListingOptions::add_to(CLI::App& command, const std::string& what) {
  keys = add_option(command, "--keys KEY", beginning,
                    fmt::format("show every key of a {0}, or those that begin so, with type, "
                                "default, limits and meaning; --json for programs",
                                what))
             ->expected(0, 1);
  command
      .add_flag("--schema", schema, fmt::format("with --keys: print the JSON schema of a {}", what))
      ->needs(keys);
}

void show_keys(const KeyListingOptions& options, const std::vector<ConfigKey>& keys,
               const Json& schema, bool json) {
  if (options.schema) {
    fmt::print("{}\n", schema.dump(2));
    return;
  }
  const std::vector<KeyGroup> groups = those_that_begin(options.beginning, groups_of(keys));
  Json list = Json::array();
  for (const KeyGroup& group : groups) {
    if (!json) print_group(group);
    for (const ListedKey& key : group.keys) list.push_back(to_json(group, key));
  }
  if (json) fmt::print("{}\n", list.dump());
}

void print_keys_page() {
  fmt::print("{}\n## Recipes\n", kPage);
  print_tables(recipe_keys());
  fmt::print("\n## Studies\n\n{}\n",
             "A study is a JSON object. `<axis>` and `<arm>` stand for names of its own.");
  print_tables(study_keys());
}

}  // namespace attnres
