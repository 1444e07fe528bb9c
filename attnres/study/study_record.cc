#include "attnres/study/study_record.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/study/study_recipe.h"
#include "attnres/support/error.h"
#include "attnres/support/told_numbers.h"

namespace attnres {
namespace {

constexpr size_t kMostRecords = 2 * kMostRuns;  // with trials

constexpr std::array kRunStates = {"waiting", "missing", "unfinished",
                                   "done",    "failed",  "diverged"};  // in the order of RunState

Json whole_or_null(double value) {
  return std::abs(value) < 0x1p63 ? Json(std::llround(value)) : Json();
}

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<std::string> texts_of(const Json& object, const char* key) {
  std::vector<std::string> texts;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return texts;
  for (const Json& item : *found) {
    if (item.is_string()) texts.push_back(item);
  }
  return texts;
}

// Null where it is none.
Json object_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? *found : Json();
}

RunState state_named(const std::string& name) {
  const auto state = std::find(kRunStates.begin(), kRunStates.end(), name);
  return state == kRunStates.end() ? RunState::missing : RunState(state - kRunStates.begin());
}

bool is_file_name(const std::string& name) {
  constexpr size_t kLongest = 255;
  return !name.empty() && name.size() <= kLongest && name != "." && name != ".." &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

StudyRunRecord parse_run(const Json& json, const std::vector<std::string>& axes,
                         const std::string& what) {
  require(json.is_object() && is_file_name(text_of(json, "name")),
          "{}: not a study's: expected runs with a name each, came {}", what, shown(json));
  const Json arms = object_of(json, "arms");
  StudyRunRecord run;
  run.name = text_of(json, "name");
  for (const std::string& axis : axes) run.arms.push_back(text_of(arms, axis.c_str()));
  run.seed = count_at(json, "seed").value_or(0);
  run.is_trial = text_of(json, "role") == "trial";
  run.state = state_named(text_of(json, "state"));
  run.step = count_at(json, "step").value_or(0);
  run.steps = count_at(json, "steps").value_or(0);
  run.parameters = count_at(json, "parameters").value_or(0);
  run.tokens = measured_at(json, "tokens");
  run.flops = measured_at(json, "flops");
  run.from = text_of(json, "from");
  run.seconds = measured_at(json, "seconds");
  run.peak_bytes = measured_at(json, "peak_bytes");
  run.final_val_loss = measured_at(json, "final_val_loss");
  run.best_val_loss = measured_at(json, "best_val_loss");
  run.best_step = count_at(json, "best_step").value_or(0);
  run.error = text_of(json, "error");
  return run;
}

}  // namespace

const char* name_of(RunState state) {
  return kRunStates.at(static_cast<size_t>(state));
}

std::vector<std::string> StudyRecord::chosen_sentences() const {
  return texts_of(chosen, "sentences");
}

Json run_json(const StudyRecord& study, const StudyRunRecord& run) {
  Json arms = Json::object();
  for (size_t i = 0; i < run.arms.size(); ++i) {
    if (!run.arms[i].empty()) arms[study.axes[i]] = run.arms[i];
  }
  Json json = {{"name", run.name},
               {"arms", arms},
               {"seed", run.seed},
               {"role", run.is_trial ? "trial" : "run"},
               {"state", name_of(run.state)},
               {"step", run.step},
               {"steps", run.steps},
               {"parameters", run.parameters},
               {"tokens", whole_or_null(run.tokens)},
               {"flops", number_or_null(run.flops)},
               {"from", run.from.empty() ? Json() : Json(run.from)},
               {"seconds", number_or_null(run.seconds)},
               {"peak_bytes", whole_or_null(run.peak_bytes)},
               {"final_val_loss", number_or_null(run.final_val_loss)},
               {"best_val_loss", number_or_null(run.best_val_loss)},
               {"best_step", run.best_step}};
  if (!run.error.empty()) json["error"] = run.error;
  return json;
}

Json study_json(const StudyRecord& study) {
  Json runs = Json::array(), baseline = Json::object();
  for (const StudyRunRecord& run : study.runs) runs.push_back(run_json(study, run));
  for (const auto& [axis, arm] : study.baseline) baseline[axis] = arm;
  return {{"study", study.name},      {"question", study.question},
          {"claim", study.claim},     {"figures", study.figures},
          {"baseline", baseline},     {"axes", study.axes},
          {"data", study.data},       {"validation", study.validation},
          {"threads", study.threads}, {"device", study.device},
          {"tuning", study.tuning},   {"chosen", study.chosen},
          {"smoke", study.smoke},     {"runs", runs}};
}

StudyRecord parse_study_json(const Json& json, const std::string& what) {
  require(json.is_object() && json.contains("runs") && json["runs"].is_array(),
          "{}: not a study's: it has no list \"runs\"", what);
  require(json["runs"].size() <= kMostRecords, "{}: it has {} runs; a study has {} at most", what,
          json["runs"].size(), kMostRecords);
  StudyRecord study;
  study.name = text_of(json, "study");
  study.question = text_of(json, "question");
  study.claim = text_of(json, "claim");
  study.axes = texts_of(json, "axes");
  require(study.axes.size() <= kMostAxes, "{}: it has {} axes; a study has {} at most", what,
          study.axes.size(), kMostAxes);
  const Json baseline = object_of(json, "baseline");
  for (const auto& [axis, arm] : baseline.items()) {
    if (arm.is_string()) study.baseline[axis] = arm;
  }
  if (const Json* figures = find(json, "/figures"); figures && figures->is_array()) {
    for (const Json& figure : *figures) {
      if (figure.is_object()) study.figures.push_back(figure);
    }
    require(study.figures.size() <= kMostFigures, "{}: it has {} figures; a study has {} at most",
            what, study.figures.size(), kMostFigures);
  }
  study.data = texts_of(json, "data");
  study.validation = texts_of(json, "validation");
  study.threads =
      static_cast<int>(std::min<int64_t>(count_at(json, "threads").value_or(0), INT32_MAX));
  if (const std::string device = text_of(json, "device"); !device.empty()) study.device = device;
  study.tuning = object_of(json, "tuning");
  study.chosen = object_of(json, "chosen");
  const auto smoke = json.find("smoke");
  study.smoke = smoke != json.end() && smoke->is_boolean() && smoke->get<bool>();
  for (const Json& run : json["runs"]) study.runs.push_back(parse_run(run, study.axes, what));
  return study;
}

}  // namespace attnres
