#include "attnres/train/recipe/recipe.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/data/train_batches.h"
#include "attnres/depth/mechanism.h"
#include "attnres/model/layer_kind.h"
#include "attnres/parallel/transfers.h"
#include "attnres/support/config.h"
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
    v("name", name);
    v("model", model);
    v("data", data);
    v("train", train);
    v("parallel", parallel);
    v("tokenizer", tokenizer);
  }
};

// More than anyone means, and few enough that products of these do not overflow.
constexpr int64_t kMostSteps = 1'000'000'000;
constexpr int64_t kMostRows = int64_t{1} << 24;     // of a step; see RowOrder::drawn
constexpr int64_t kMostContext = int64_t{1} << 24;  // tokens

void check_range(const char* key, double value, double least, double most) {
  require_usage(value >= least && value <= most, "train.{}: expected {} to {}, got {}", key, least,
                most, value);
}

void check_below_one(const char* key, double value) {
  require_usage(value >= 0 && value < 1, "train.{}: expected 0 or more and below 1, got {}", key,
                value);
}

void check(const TrainConfig& train) {
  const auto check_number = [](const char* key, int64_t value, int64_t least,
                               int64_t most = INT64_MAX) {
    check_whole("train", key, value, least, most);
  };
  check_number("steps", train.steps, 1, kMostSteps);
  check_number("batch_size", train.batch_size, 1, kMostRows);
  check_number("accumulate", train.accumulate, 1);
  require_usage(train.batch_size % train.accumulate == 0,
                "train.accumulate: {} sequences cannot be computed in {} equal parts",
                train.batch_size, train.accumulate);
  check_number("context", train.context, 2, kMostContext);
  check_number("warmup", train.warmup, 0);
  check_number("seed", train.seed, 0);
  check_number("eval_every", train.eval_every, 1);
  check_number("eval_tokens", train.eval_tokens, 1);
  check_number("checkpoint_every", train.checkpoint_every, 1);
  check_number("sample_tokens", train.sample_tokens, 0, kMostContext);
  check_range("learning_rate", train.learning_rate, 0, 10);
  check_range("decay_fraction", train.decay_fraction, 0, 1);
  check_range("final_fraction", train.final_fraction, 0, 1);
  check_range("weight_decay", train.weight_decay, 0, 10);
  check_below_one("beta1", train.beta1);
  check_below_one("beta2", train.beta2);
  check_range("epsilon", train.epsilon, 1e-30, 1);  // with 0, a gradient of 0 would give NaN
  check_below_one("muon_momentum", train.muon_momentum);
  check_range("expert_balance_rate", train.expert_balance_rate, 0, 1);
  check_range("clip", train.clip, 0, 1e9);
  for (const auto& [pattern, factor] : train.rates) {
    check_range(("rates." + one_line(pattern)).c_str(), factor, 0, 1000);
  }
  require_usage(train.schedule == "cosine" || train.schedule == "wsd",
                "train.schedule: expected cosine or wsd, got {}", one_line(train.schedule));
  require_usage(train.optimizer == "adamw" || train.optimizer == "muon",
                "train.optimizer: expected adamw or muon, got {}", one_line(train.optimizer));
  precision_of(train);
}

void check(const DataConfig& data) {
  const double fraction = data.validation_fraction;
  require_usage(fraction > 0 && fraction <= 0.5,
                "data.validation_fraction: expected above 0 and at most 0.5, got {}", fraction);
  row_order_named(data.order);
  packing_named(data.packing);
  for (const auto& [name, weight] : data.weights) {
    require_usage(std::isfinite(weight) && weight > 0,
                  "data.weights.{}: expected a number above 0, got {}", one_line(name), weight);
  }
}

void check(const ParallelConfig& parallel, const TrainConfig& train, const ModelConfig& model) {
  constexpr int64_t kMost = 1 << 20;
  check_whole("parallel", "data", parallel.data, 1, kMost);
  check_whole("parallel", "pipeline", parallel.pipeline, 1, kMost);
  check_whole("parallel", "virtual", parallel.virtual_stages, 1, kMost);
  check_whole("parallel", "tensor", parallel.tensor, 1, kMost);
  require_equal_parts(model, parallel.tensor);
  transfer_policy(parallel.policy);
  require_usage(std::isfinite(parallel.timeout) && parallel.timeout > 0,
                "parallel.timeout: expected a number of seconds above 0, got {}", parallel.timeout);
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
    const std::vector<std::string>& known =
        find_mechanism(value_at(after, "model.depth_mixing")).settings;
    const auto is_unknown = [&](const std::string& name) {
      return name != "type" && std::find(known.begin(), known.end(), name) == known.end();
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
  Recipe recipe;
  recipe.data.weights = recipe.train.rates = {{"*", 1.0}};  // are left out where they are empty
  std::vector<std::string> keys;
  std::vector<std::pair<std::string, Json>> objects = {{"", recipe_to_json(recipe)}};
  for (size_t i = 0; i < objects.size(); ++i) {
    const auto [path, object] = objects[i];
    for (const auto& [name, value] : object.items()) {
      keys.push_back(path + name);
      if (value.is_object()) objects.emplace_back(path + name + ".", value);
    }
  }
  return keys;
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
  check(file.data);
  check(file.train);
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

}  // namespace attnres
