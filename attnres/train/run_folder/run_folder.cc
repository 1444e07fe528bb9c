#include "attnres/train/run_folder/run_folder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "attnres/data/train_batches.h"
#include "attnres/support/error.h"
#include "attnres/support/told_numbers.h"
#include "attnres/train/recipe/recipe.h"

namespace attnres {
namespace {

// Keys of `train` that may change; require_same_run says why.
constexpr std::string_view kChangeable[] = {"steps", "eval_every", "checkpoint_every",
                                            "sample_tokens"};

Json without_changeable(Json recipe) {
  recipe.erase("parallel");
  for (const std::string_view key : kChangeable) recipe.at("train").erase(std::string(key));
  return recipe;
}

}  // namespace

Json read_run_json(const RunPaths& paths) {
  Json run = read_json(paths.run_json());
  const std::string file = paths.run_json().string();
  const auto check_part = [&](const char* pointer, const char* expected, auto&& is_right) {
    const Json::json_pointer part(pointer);
    if (!run.contains(part)) return;
    require(static_cast<bool>(is_right(run.at(part))), "{}: not a run's: {}: expected {}, got {}",
            file, pointer, expected, shown(run.at(part)));
  };
  const auto require_part = [&](const char* pointer, const char* expected, auto&& is_right) {
    require(run.contains(Json::json_pointer(pointer)), "{}: not a run's: it has no {}", file,
            pointer);
    check_part(pointer, expected, is_right);
  };
  const auto is_text = [](const Json& value) { return value.is_string(); };
  const auto is_list = [](auto&& is_right) {
    return [is_right](const Json& value) {
      return value.is_array() && std::all_of(value.begin(), value.end(), is_right);
    };
  };
  const auto is_count = [](const Json& value) { return count_in(value).has_value(); };
  require_part("/recipe/name", "a text", is_text);
  require_part("/recipe/train/steps", "a whole number", is_count);
  require_part("/data/hash", "a text", is_text);
  require_part("/data/paths", "a list of paths", is_list(is_text));
  for (const char* text : {"/data/split", "/data/tokenizer", "/data/validation_hash"}) {
    check_part(text, "a text", is_text);
  }
  for (const char* count : {"/data/least_validation_bytes", "/parameters"}) {
    check_part(count, "a whole number", is_count);
  }
  check_part("/data/validation_paths", "a list of paths", is_list(is_text));
  check_part("/data/validation_left_out", "a list of whole numbers", is_list(is_count));
  check_part("/changes", "a list of objects",
             is_list([](const Json& value) { return value.is_object(); }));
  // Before there were epochs, rows were drawn.
  Json& data = run["recipe"]["data"];
  if (!data.is_object()) data = Json::object();
  if (!data.contains("order")) data["order"] = name_of(RowOrder::drawn);
  return run;
}

std::optional<RunPaths> run_of_checkpoint(const std::filesystem::path& folder) {
  const std::filesystem::path whole = std::filesystem::weakly_canonical(folder);
  const RunPaths run{whole.parent_path().parent_path()};
  const bool is_checkpoint = whole.parent_path() == run.checkpoints();
  if (!is_checkpoint || !path_exists(run.run_json())) return std::nullopt;
  return run;
}

std::string model_name(const std::filesystem::path& folder) {
  const std::optional<RunPaths> run = run_of_checkpoint(folder);
  if (!run) return std::filesystem::weakly_canonical(folder).filename().string();
  return read_run_json(*run).at("recipe").at("name");
}

void require_same_run(const std::filesystem::path& folder, const Json& before, const Json& after) {
  // With every default filled in: an older run lacks the keys that came after it.
  const auto whole = [](const Json& run) { return recipe_to_json(parse_recipe(run.at("recipe"))); };
  const Json recipe = whole(before), new_recipe = whole(after);
  std::vector<std::string> found =
      differences(without_changeable(recipe), without_changeable(new_recipe));
  // The order of keys, which is not compared, decides which pattern is a parameter's.
  for (const char* key : {"rates", "decays"}) {
    const auto patterns = [&](const Json& of) { return of.at("train").value(key, Json()); };
    if (found.empty() && patterns(recipe) != patterns(new_recipe)) {
      found.push_back(fmt::format("train.{}: its patterns have another order", key));
    }
  }
  const Json &steps = recipe.at("train").at("steps"),
             &new_steps = new_recipe.at("train").at("steps");
  if (new_steps < steps) {
    found.push_back(fmt::format("train.steps: {} -> {} (a run can only be made longer)",
                                steps.dump(), new_steps.dump()));
  }
  // The same text can still give other tokens: a damaged tokenizer, or another version of it.
  for (const char* key : {"hash", "tokens_hash", "split", "validation_hash"}) {
    const std::string path = std::string("data.") + key;
    for (std::string& difference : differences(before.at("data").value(key, Json()),
                                               after.at("data").value(key, Json()), path)) {
      const char* option = path == "data.hash"              ? "--data"
                           : path == "data.validation_hash" ? "--validation"
                                                            : nullptr;
      if (option != nullptr) {
        difference += fmt::format(
            ": the text has changed; restore it, or name where it lies with {}", option);
      }
      found.push_back(std::move(difference));
    }
  }
  if (found.empty()) return;
  std::string list;
  for (const std::string& difference : found) list += "\n  " + difference;
  fail(
      "{}: --resume needs the recipe and data that the run began with, but these differ:{}\n"
      "undo the change, or start a new run with another --out. What may change: train.steps to "
      "more, train.eval_every, train.checkpoint_every, train.sample_tokens, parallel",
      folder.string(), list);
}

Json with_changes(const Json& before, const Json& after, int64_t step) {
  const Json &old_train = before.at("recipe").at("train"), &train = after.at("recipe").at("train");
  Json change = {{"step", step}};
  for (const std::string_view name : kChangeable) {
    const std::string key(name);
    const Json old_value = old_train.value(key, Json()), value = train.value(key, Json());
    if (old_value != value) change["train." + key] = {old_value, value};
  }
  const Json old_layout = before.at("recipe").value("parallel", Json()),
             layout = after.at("recipe").value("parallel", Json());
  if (old_layout != layout) change["parallel"] = {old_layout, layout};
  Json run = before;
  run["recipe"] = after.at("recipe");
  if (change.size() > 1) run["changes"].push_back(change);
  return run;
}

void require_free_folder(const RunPaths& paths) {
  for (const auto& log : {paths.metrics(), paths.probes(), paths.samples()}) {
    require(
        !path_exists(log),
        "{}: is there, but no run.json: this folder is not a run's, and training would overwrite "
        "it; choose another --out",
        log.string());
  }
  for (const auto& [file, what] : {std::pair("config.json", "a model"),
                                   {"study.json", "a study"},
                                   {"tokens.json", "tokens"}}) {
    require(!path_exists(paths.folder / file),
            "{}: holds {} ({}), beside which a run is not found; choose another --out",
            paths.folder.string(), what, file);
  }
  require_writable_folder(paths.folder);
}

}  // namespace attnres
