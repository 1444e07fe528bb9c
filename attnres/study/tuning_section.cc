#include "attnres/study/tuning_section.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/report/arm_table.h"
#include "attnres/study/study_recipe.h"
#include "attnres/support/told_numbers.h"

namespace attnres {
namespace {

std::string json_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_null() ? "not chosen yet" : value.dump();
}

// "residual · 64", of the arms of a trial.
std::string arms_text(const Json& entry) {
  const Json* arms = find(entry, "/arms");
  std::string text;
  if (arms == nullptr || !arms->is_object()) return text;
  for (const auto& [axis, arm] : arms->items()) {
    text += (text.empty() ? "" : " · ") + json_text(arm);
  }
  return text;
}

// Whether arms may be trained with a value that is not their own best.
bool has_common_values(const Json& tuning) {
  const Json* chosen = find(tuning, "/chosen");
  return chosen && chosen->is_array() &&
         std::any_of(chosen->begin(), chosen->end(), [](const Json& entry) {
           const Json *common = find(entry, "/common"), *own = find(entry, "/own");
           return common && own && *common != *own;
         });
}

std::string chosen_table(const Json& tuning) {
  const Json* chosen = find(tuning, "/chosen");
  if (chosen == nullptr || !chosen->is_array() || chosen->empty()) return "";
  std::vector<std::string> headings;
  std::vector<TableColumn> columns = {{"own", {}}};
  if (has_common_values(tuning)) columns.insert(columns.begin(), TableColumn{"common", {}});
  for (const Json& entry : *chosen) {
    if (!entry.is_object()) continue;
    headings.push_back(row_heading(arms_text(entry)));
    for (TableColumn& column : columns) {
      const Json* value = find(entry, "/" + column.name);
      column.cells.push_back(value ? escape_html(json_text(*value)) : kNoValue);
    }
  }
  return numbers_table("arm", headings, columns);
}

// Rows are arms, columns the values tried, the best of each arm marked.
std::string trials_table(const Json& tuning) {
  const Json* trials = find(tuning, "/trials");
  if (trials == nullptr || !trials->is_array()) return "";
  std::vector<std::string> names, values;
  std::map<std::pair<std::string, std::string>, double> losses;
  std::map<std::string, double> least;
  for (const Json& trial : *trials) {
    if (values.size() == kMostTunedValues) break;
    if (!trial.is_object() || !trial.contains("value")) continue;
    const std::string name = arms_text(trial), value = json_text(trial["value"]);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    const double loss = measured_at(find(trial, "/final_val_loss"));
    if (std::isnan(loss)) continue;
    losses[{name, value}] = loss;
    const auto [entry, is_first] = least.try_emplace(name, loss);
    if (!is_first) entry->second = std::min(entry->second, loss);
  }
  std::vector<std::string> headings;
  std::vector<TableColumn> columns;
  for (const std::string& value : values) columns.push_back({escape_html(value), {}});
  for (const std::string& name : names) {
    headings.push_back(row_heading(name));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto loss = losses.find({name, values[i]});
      std::string cell = loss == losses.end() ? kNoValue : format_loss(loss->second);
      if (loss != losses.end() && loss->second == least[name])
        cell = fmt::format("<b>{}</b>", cell);
      columns[i].cells.push_back(cell);
    }
  }
  return headings.empty() ? "" : numbers_table("arm", headings, columns);
}

// The arms at their own rate, each compared with itself at the common one.
std::vector<Arm> arms_at_own_rate(const StudyData& data) {
  const auto axis = data.find_axis(kRateAxis);
  if (!axis) return {};
  std::vector<Arm> arms;
  std::vector<std::optional<size_t>> baselines;
  for (size_t own = 0; own < data.arms.arms.size(); ++own) {
    std::vector<std::string> names = data.arms.names[own];
    if (names[*axis] != kOwnRate) continue;
    names[*axis] = kCommonRate;
    const auto common = find_arm(data.arms, data.study, names);
    if (!common) continue;
    baselines.insert(baselines.end(), 2, arms.size());
    arms.push_back(data.arms.arms[*common]);
    arms.back().difference = {};
    arms.push_back(data.arms.arms[own]);
    arms.back().label = data.label_without(own, axis);
  }
  compare_arms(arms, baselines);
  std::erase_if(arms, [](const Arm& arm) { return arm.difference.pairs == 0; });
  return arms;
}

std::string own_rate_table(const StudyData& data) {
  const std::vector<Arm> arms = arms_at_own_rate(data);
  if (arms.empty()) return "";
  std::vector<std::string> headings;
  for (const Arm& arm : arms) headings.push_back(row_heading(arm.label));
  const auto higher = std::count_if(arms.begin(), arms.end(),
                                    [](const Arm& arm) { return arm.difference.mean > 0; });
  const std::string said = fmt::format(
      "<p>{} own; with it {} higher than with the common one. Where many do, the trials were too "
      "short to choose a rate by.</p>\n",
      arms.size() == 1 ? "1 arm has another rate of its"
                       : fmt::format("{} arms have another rate of their", arms.size()),
      higher == 1 ? "1 ends" : fmt::format("{} end", higher));
  return "<h3>At its own rate, against itself at the common one</h3>\n" + said +
         numbers_table("arm", headings, escaped(arm_columns(arms))) +
         how_to_read(escape_html(arm_table_key("the arm at the common rate")));
}

}  // namespace

std::string tuning_section(const StudyData& data) {
  const Json& tuning = data.study.tuning;
  if (tuning.is_null()) return "";
  const Json* tuned = find(tuning, "/key");
  const std::string name = tuned && tuned->is_string() ? tuned->get<std::string>() : "";
  return section(
      "tuning", "Learning rates tried",
      chosen_table(tuning) + own_rate_table(data) + "<h3>Trials</h3>\n" + trials_table(tuning) +
          how_to_read("Final validation losses of short runs with these values of <code>" +
                      escape_html(name) + "</code>, the best of each row bold. " +
                      (has_common_values(tuning)
                           ? "Common: the best of the baseline, used by all; own: the best "
                             "of the arm itself."
                           : "Each arm is trained with its own best.")));
}

}  // namespace attnres
