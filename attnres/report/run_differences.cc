#include "attnres/report/run_differences.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "attnres/report/settings.h"
#include "attnres/support/format.h"
#include "attnres/support/told_numbers.h"

namespace attnres {
namespace {

// Settings of a recipe that decide nothing that is learned.
const std::set<std::string> kBookkeeping = {"name", "train.eval_every", "train.checkpoint_every",
                                            "train.sample_tokens"};
// Ways of computing the same, at another speed.
const std::set<std::string> kSchedulesOfComputing = {"train.accumulate", "train.recompute"};
// What a validation loss is measured on.
const std::set<std::string> kValidation = {"train.context", "train.eval_tokens"};

bool is_depth_mixing(const std::string& key) {
  return key.starts_with("model.depth_mixing.");
}

SettingsTable table_of(const std::vector<RunData>& runs, const char* pointer) {
  SettingsTable table(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    if (const Json* part = find(runs[i].record, pointer)) table.add(i, "", *part);
  }
  return table;
}

// What an older run didn't record isn't known to differ.
bool is_known_to_differ(const SettingsTable& table, const std::string& key) {
  return table.values(key).size() > 1;
}

bool is_any_known_to_differ(const SettingsTable& table) {
  return std::any_of(table.keys().begin(), table.keys().end(),
                     [&](const std::string& key) { return is_known_to_differ(table, key); });
}

// "train.warmup (50, 100)"
std::string with_values(const SettingsTable& table, const std::string& key) {
  constexpr size_t kMostValues = 4;
  const std::vector<std::string> values = table.values(key);
  std::string list;
  for (size_t i = 0; i < std::min(values.size(), kMostValues); ++i) {
    list += (i ? ", " : "") + values[i];
  }
  return fmt::format("{} ({}{})", key, list, values.size() > kMostValues ? ", ..." : "");
}

std::string enumerate(const std::vector<std::string>& items) {
  constexpr size_t kMostItems = 4;
  std::string out;
  for (size_t i = 0; i < std::min(items.size(), kMostItems); ++i) out += (i ? ", " : "") + items[i];
  if (items.size() > kMostItems) out += fmt::format(" and {} more", items.size() - kMostItems);
  return out;
}

void compare_data(const std::vector<RunData>& runs, const SettingsTable& recipe,
                  std::vector<std::string>& out) {
  const SettingsTable data = table_of(runs, "/data");
  const auto in_data = [&](const char* key) { return is_known_to_differ(data, key); };
  const bool tokenizers =
      std::any_of(recipe.keys().begin(), recipe.keys().end(), [&](const std::string& key) {
        return key.starts_with("tokenizer.") && is_known_to_differ(recipe, key);
      });
  if (in_data("hash")) out.push_back("different data");
  if (tokenizers) out.push_back("different tokenizers, so that a token is not the same");
  if (in_data("hash") || tokenizers) return;
  // The tokens in their order, and where the held-out ones begin.
  if (in_data("tokens_hash") || in_data("train_tokens") || in_data("validation_tokens")) {
    out.push_back("other parts of the data held out to validate on");
  }
}

void compare_origins(const std::vector<RunData>& runs, std::vector<std::string>& out) {
  std::set<std::string> checksums;
  std::vector<std::string> began;
  for (const RunData& run : runs) {
    const Json* checksum = find(run.record, "/from/checksum");
    const std::string from = origin(run);
    checksums.insert(checksum ? checksum->dump() : from);
    if (!from.empty()) {
      began.push_back(fmt::format("{} began with the weights of {}", run.label, from));
    }
  }
  if (checksums.size() > 1) out.push_back(enumerate(began));
}

// How a run was made longer: "40 to 80 steps at step 40". The learning rates before and after
// belong to different schedules, as in no run that was as long from the beginning.
std::string lengthenings(const RunData& run) {
  const Json* changes = find(run.record, "/changes");
  std::string out;
  if (!changes || !changes->is_array()) return out;
  for (const Json& change : *changes) {
    const Json* before = find(change, "/train.steps/0");
    const Json* after = find(change, "/train.steps/1");
    const Json* step = find(change, "/step");
    if (!before || !after || !step) continue;
    out += fmt::format("{}{} to {} steps at step {}", out.empty() ? "" : ", ", before->dump(),
                       after->dump(), step->dump());
  }
  return out;
}

void compare_lengthenings(const std::vector<RunData>& runs, std::vector<std::string>& out) {
  std::set<std::string> different;
  std::vector<std::string> longer;
  for (const RunData& run : runs) {
    const std::string how = lengthenings(run);
    different.insert(how);
    if (!how.empty()) longer.push_back(fmt::format("{} was made longer ({})", run.label, how));
  }
  if (different.size() > 1) out.push_back(enumerate(longer));
}

void compare_amounts(const std::vector<RunData>& runs, std::vector<std::string>& out) {
  double fewest = INFINITY, most = 0;
  for (const RunData& run : runs) {
    const Metric* last = last_validation(run);
    if (!last || std::isnan(last->tokens)) continue;
    fewest = std::min(fewest, last->tokens);
    most = std::max(most, last->tokens);
  }
  if (fewest < 0.99 * most) {
    out.push_back(fmt::format("trained on different amounts, {} to {} tokens", format_count(fewest),
                              format_count(most)));
  }
}

}  // namespace

std::string origin(const RunData& run) {
  const Json* from = find(run.record, "/from");
  if (!from || !from->is_object()) return "";
  const auto name = from->find("name");
  std::string out = name != from->end() && name->is_string() ? name->get<std::string>() : "";
  if (out.empty()) out = "a trained model";
  if (const auto count = count_at(*from, "step")) {
    out += fmt::format(" (step {})", *count);
  }
  return out;
}

RunDifferences find_differences(const std::vector<RunData>& runs) {
  RunDifferences out;
  const SettingsTable recipe = table_of(runs, "/recipe");
  compare_data(runs, recipe, out.losses);
  compare_origins(runs, out.losses);
  compare_lengthenings(runs, out.losses);
  compare_amounts(runs, out.losses);

  bool mixing_differs = false;
  std::vector<std::string> validation, learning;
  for (const std::string& key : recipe.keys()) {
    if (!is_known_to_differ(recipe, key) || key == "train.seed" || key.starts_with("tokenizer.") ||
        kBookkeeping.count(key)) {
      continue;
    }
    if (is_depth_mixing(key)) {
      mixing_differs = true;
    } else if (kSchedulesOfComputing.count(key)) {
      out.speeds.push_back("different " + with_values(recipe, key));
    } else {
      (kValidation.count(key) ? validation : learning).push_back(with_values(recipe, key));
    }
  }
  if (!validation.empty()) {
    out.losses.push_back("validated with different " + enumerate(validation));
  }
  if (!mixing_differs) {
    out.settings = learning;
  } else if (!learning.empty()) {
    out.losses.push_back("besides the depth mixing, different " + enumerate(learning));
  }

  if (is_any_known_to_differ(table_of(runs, "/machine"))) {
    out.speeds.push_back("different machines or numbers of threads");
  }
  if (is_any_known_to_differ(table_of(runs, "/build"))) out.speeds.push_back("different builds");
  return out;
}

std::string arm_key(const RunData& run) {
  SettingsTable table(1);
  if (const Json* recipe = find(run.record, "/recipe")) table.add(0, "", *recipe);
  std::set<std::string> settings;
  for (const std::string& key : table.keys()) {
    if (key == "train.seed" || kBookkeeping.count(key)) continue;
    settings.insert(key + "=" + *table.value(0, key));
  }
  if (const std::string longer = lengthenings(run); !longer.empty()) settings.insert(longer);
  std::string out;
  for (const std::string& setting : settings) out += setting + "\n";
  return out;
}

}  // namespace attnres
