#include "attnres/train/recipe/recipe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attnres/depth/mechanism.h"
#include "attnres/model/layer_kind.h"
#include "attnres/support/config.h"
#include "attnres/support/config_schema.h"
#include "attnres/support/format.h"
#include "attnres/support/nearest.h"
#include "attnres/support/setting_words.h"

namespace attnres {
namespace {

// The file's outermost keys; the model's are read by read_model_config.
struct RecipeFile {
  std::string name = "unnamed";
  Json model = Json::object();
  DataConfig data;
  TrainConfig train;
  ParallelConfig parallel;
  TokenizerConfig tokenizer;

  template <class V>
  void visit(V& v) {
    v("name", name, "what the run's folder is called where --out names none");
    v("model", model, "a decoder-only Transformer");
    v("data", data, "how the text is taken: docs/data.md");
    v("train", train, "steps, optimizer, and what is written meanwhile");
    v("parallel", parallel, "how many processes train, and what each does: docs/parallel.md");
    v("tokenizer", tokenizer, "the tokenizer that is trained on the text: docs/tokenizers.md");
  }
};

void check(const ParallelConfig& parallel, const TrainConfig& train, const ModelConfig& model) {
  require_equal_parts(model, parallel.tensor);
  require_usage(parallel.virtual_stages == 1 || parallel.pipeline > 1,
                "parallel.virtual: {} stages a process need parallel.pipeline to be 2 or more",
                parallel.virtual_stages);
  const int64_t stages = parallel.pipeline * parallel.virtual_stages;
  require_usage(stages <= model.sublayers(),
                "parallel.pipeline: {} with {} each are {}, but the model has {}, and every stage "
                "needs one",
                counted(parallel.pipeline, "process"), counted(parallel.virtual_stages, "stage"),
                counted(stages, "stage"), counted(model.sublayers(), "sublayer"));
  require_usage(train.accumulate % parallel.data == 0,
                "parallel.data: {} cannot share a step's batch, which train.accumulate makes {}; "
                "make train.accumulate a multiple of parallel.data",
                counted(parallel.data, "replica"), counted(train.accumulate, "equal part"));
}

// What stands at a path like "model.attention"; null where nothing does.
Json* find_at(Json& recipe, const std::string& path) {
  Json* at = &recipe;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t dot = std::min(path.find('.', begin), path.size());
    const auto value = at->find(path.substr(begin, dot - begin));
    if (value == at->end()) return nullptr;
    at = &*value;
    begin = dot + 1;
  }
  return at;
}

Json value_at(Json recipe, const std::string& path) {
  const Json* at = find_at(recipe, path);
  return at == nullptr ? Json() : *at;
}

// A setting of an object in a recipe.
struct Setting {
  std::string object, name;  // "model.depth_mixing", "block_size"

  std::string key() const { return object + "." + name; }
};

// Those of the object at a path for which `is_left_over(name)`.
template <class IsLeftOver>
void collect(const Json& recipe, const std::string& path, IsLeftOver is_left_over,
             std::vector<Setting>& found) {
  const Json object = value_at(recipe, path);
  if (!object.is_object()) return;
  for (const auto& [name, value] : object.items()) {
    if (is_left_over(name)) found.push_back({path, name});
  }
}

// Settings that have no meaning since a choice changed; see apply_overrides.
std::vector<Setting> settings_left_over(const Json& before, const Json& after) {
  const auto changed = [&](const std::string& path) {
    return value_at(before, path) != value_at(after, path);
  };
  const auto all = [](const std::string&) { return true; };
  std::vector<Setting> left;
  // What is no mechanism's name parse_recipe refuses, with what it is a part of.
  if (changed("model.depth_mixing.type") &&
      value_at(after, "model.depth_mixing.type").is_string()) {
    const std::vector<ConfigKey>& known =
        find_mechanism(value_at(after, "model.depth_mixing")).settings;
    const auto is_unknown = [&](const std::string& name) {
      return name != "type" && std::none_of(known.begin(), known.end(),
                                            [&](const auto& key) { return key.name == name; });
    };
    collect(after, "model.depth_mixing", is_unknown, left);
  }
  // Two ways to say the same.
  for (const auto& [set, other] :
       {std::pair("num_blocks", "block_size"), std::pair("block_size", "num_blocks")}) {
    if (!changed(fmt::format("model.depth_mixing.{}", set))) continue;
    const std::string replaced = other;
    collect(
        after, "model.depth_mixing", [&](const auto& name) { return name == replaced; }, left);
  }
  if (changed("model.attention")) {
    const Json kinds = value_at(after, "model.attention");
    for (const LayerKind& kind : attention_kinds()) {
      const bool is_gone = std::find(kinds.begin(), kinds.end(), kind.name) == kinds.end();
      if (is_gone && !kind.settings.key.empty()) {
        collect(after, "model." + kind.settings.key, all, left);
      }
    }
  }
  if (changed("model.experts.count") && value_at(after, "model.experts.count") == 0) {
    collect(after, "model.experts", all, left);
  }
  if (changed("tokenizer.kind")) {
    collect(
        after, "tokenizer", [](const auto& name) { return name == "vocab_size"; }, left);
  }
  return left;
}

// Whether one of the overrides sets a key, what it is in, or a part of it.
bool is_overridden(const std::string& key, const std::vector<std::string>& overrides) {
  return std::any_of(overrides.begin(), overrides.end(), [&](const std::string& assignment) {
    const std::string set = assignment.substr(0, assignment.find('=')) + ".";
    return (key + ".").starts_with(set) || set.starts_with(key + ".");
  });
}

// The paths of every key of a recipe, "train.steps", from the outermost on.
std::vector<std::string> all_keys() {
  std::vector<std::string> paths;
  std::vector<std::pair<std::string, std::vector<ConfigKey>>> objects = {{"", recipe_keys()}};
  for (size_t i = 0; i < objects.size(); ++i) {
    const auto [path, keys] = objects[i];
    for (const ConfigKey& key : keys) {
      paths.push_back(path + key.name);
      if (!key.keys.empty()) objects.emplace_back(path + key.name + ".", key.keys);
    }
  }
  return paths;
}

std::string last_part(const std::string& key) {
  return key.substr(key.rfind('.') + 1);
}

// Where a recipe has a key of this name, or of our word for it: nearest to the outermost.
std::string place_of(const std::string& name, const std::vector<std::string>& keys) {
  std::vector<std::string> words = words_for_setting(name);
  words.insert(words.begin(), name);
  for (const std::string& word : words) {
    const auto found = std::find_if(keys.begin(), keys.end(),
                                    [&](const auto& key) { return last_part(key) == word; });
    if (found != keys.end()) return *found;
  }
  return "";
}

// Throws UsageError, naming its place, on a key of the recipe itself or of one of its objects that
// means none there and belongs elsewhere.
void refuse_misplaced(const Json& recipe) {
  static const std::vector<std::string> keys = all_keys();
  const auto check = [&](const std::string& path, const std::string& name) {
    std::vector<std::string> here;
    for (const std::string& key : keys) {
      if (key.size() == path.size() + last_part(key).size() && key.starts_with(path)) {
        here.push_back(last_part(key));
      }
    }
    const std::vector<std::string>& words = words_for_setting(name);
    const bool is_meant_here =
        std::find(here.begin(), here.end(), name) != here.end() ||
        std::find_first_of(here.begin(), here.end(), words.begin(), words.end()) != here.end() ||
        !did_you_mean(name, here).empty();
    const std::string place = is_meant_here ? "" : place_of(name, keys);
    require_usage(place.empty(), "unknown key {}{}: did you mean {}?", path, one_line(name), place);
  };
  if (!recipe.is_object()) return;
  for (const auto& [name, value] : recipe.items()) {
    check("", name);
    if (!value.is_object()) continue;
    for (const auto& [inner, setting] : value.items()) check(name + ".", inner);
  }
}

}  // namespace

std::string ParallelConfig::describe_processes() const {
  const std::string shared = tensor == 1 ? "" : fmt::format(" of {} processes", tensor);
  return fmt::format("{} with {}{}{} {}", counted(data, "replica"),
                     counted(pipeline, "pipeline rank"), shared,
                     data > 1 || tensor > 1 ? " each are" : " is", counted(processes(), "process"));
}

Precision precision_of(const TrainConfig& train) {
  return parse_precision(train.precision, "train.precision");
}

Recipe parse_recipe(const Json& json) {
  require_usage(!json.contains("axes"),
                "this is a study, which has \"axes\", and not the recipe of one run; give its file "
                "to attnres study");
  refuse_misplaced(json);
  RecipeFile file;
  read_config(json, "", file);
  require_usage(file.train.batch_size % file.train.accumulate == 0,
                "train.accumulate: {} sequences cannot be computed in {} equal parts",
                file.train.batch_size, file.train.accumulate);
  file.tokenizer.check();
  const ModelConfig model = read_model_config(file.model);
  check(file.parallel, file.train, model);
  return {file.name, model, file.data, file.train, file.parallel, file.tokenizer};
}

Recipe parse_recipe_of(const std::filesystem::path& file, const Json& written, const Json& recipe) {
  const auto refusal_of = [](const Json& json) -> std::string {
    try {
      parse_recipe(json);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  try {
    return parse_recipe(recipe);
  } catch (const UsageError& error) {
    if (refusal_of(written) != error.what()) throw;  // the overrides are wrong
    fail_usage("{}: {}", file.string(), error.what());
  }
}

Json read_recipe(const std::filesystem::path& file) {
  Json recipe = read_json(file);
  require_usage(recipe.is_object(), "{}: expected an object, got {}", file.string(), shown(recipe));
  return recipe;
}

std::vector<std::string> apply_overrides(Json& recipe, const std::vector<std::string>& overrides) {
  const Json before = recipe;
  for (const std::string& assignment : overrides) apply_override(recipe, assignment);
  std::vector<std::string> dropped;
  for (const Setting& setting : settings_left_over(before, recipe)) {
    if (is_overridden(setting.key(), overrides)) continue;
    Json& object = *find_at(recipe, setting.object);
    if (!object.contains(setting.name)) continue;  // it had two reasons to go
    dropped.push_back(fmt::format("{}={}", setting.key(), object.at(setting.name).dump()));
    object.erase(setting.name);
  }
  return dropped;
}

Recipe load_recipe(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  const Json written = read_recipe(file);
  Json recipe = written;
  apply_overrides(recipe, overrides);
  return parse_recipe_of(file, written, recipe);
}

Json recipe_to_json(const Recipe& recipe) {
  return write_config(RecipeFile{recipe.name, write_config(recipe.model), recipe.data, recipe.train,
                                 recipe.parallel, recipe.tokenizer});
}

std::vector<ConfigKey> recipe_keys() {
  std::vector<ConfigKey> keys = list_keys(RecipeFile());
  for (ConfigKey& key : keys) {
    if (key.name == "model") key.keys = model_keys();
  }
  return keys;
}

Json recipe_schema() {
  return file_schema("A recipe of attnres: docs/recipe.md", recipe_keys());
}

}  // namespace attnres
