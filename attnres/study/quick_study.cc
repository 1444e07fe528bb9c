#include "attnres/study/quick_study.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "attnres/depth/mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/report/run_data.h"
#include "attnres/study/study_tuning.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/machine.h"
#include "attnres/support/nearest.h"
#include "attnres/support/told_numbers.h"

namespace attnres {
namespace {

constexpr const char* kQuickName = "compare";
constexpr const char* kMixing = "mixing";  // the axis

// Widths of models with 8 Transformer layers, in which 8 blocks of Block AttnRes are not yet Full.
constexpr std::array<int64_t, 13> kQuickWidths = {32,  48,  64,  96,  128, 160, 192,
                                                  256, 320, 384, 512, 768, 1024};
constexpr int64_t kQuickContext = 256;
constexpr int64_t kLooks = 10;        // at the validation text, and checkpoints
constexpr int64_t kTrialShare = 4;    // a trial has so many times fewer steps than a run
constexpr int64_t kMeasuredAt = 128;  // the width at which mixing is timed

int64_t steps_between_looks(int64_t steps) {
  return (steps + kLooks - 1) / kLooks;
}

int64_t trial_steps(int64_t steps) {
  return std::max<int64_t>(steps / kTrialShare, 1);
}

Json base_of(int64_t width, int64_t steps) {
  return {{"name", kQuickName},
          {"model",
           {{"layers", 8},
            {"width", width},
            {"heads", std::max<int64_t>(width / 32, 2)},
            {"depth_mixing", {{"type", "residual"}}}}},
          {"train",
           {{"steps", steps},
            {"batch_size", width < 128 ? 8 : 16},
            {"context", kQuickContext},
            {"learning_rate", quick_rate(width)},
            {"warmup", std::max<int64_t>(steps / 20, 1)},
            {"eval_every", steps_between_looks(steps)},
            {"checkpoint_every", steps_between_looks(steps)}}},
          {"tokenizer", {{"kind", "bytes"}}}};
}

StudyArm arm_of(const std::string& mechanism) {
  return {.name = mechanism,
          .overrides = {"model.depth_mixing=" + Json{{"type", mechanism}}.dump()}};
}

// As a study's file has it.
Json quick_tuning(const Json& base) {
  const Recipe recipe = parse_recipe(base);
  const int64_t steps = trial_steps(recipe.train.steps);
  return {{"key", "train.learning_rate"},
          {"values", quick_rates_tried(recipe.model.width)},
          {"set", {{"train.steps", steps}, {"train.warmup", std::max<int64_t>(steps / 20, 1)}}}};
}

// Small enough to try whether all of it works.
const Json& quick_smoke() {
  static const Json smoke = {
      {"model.width", 32},     {"model.heads", 2},         {"train.steps", 4},
      {"train.batch_size", 2}, {"train.context", 32},      {"train.warmup", 1},
      {"train.eval_every", 2}, {"train.eval_tokens", 256}, {"train.sample_tokens", 0}};
  return smoke;
}

Json quick_figures() {
  return {{{"kind", "forest"}, {"x", "mixing"}},
          {{"kind", "dynamics"}},
          {{"kind", "depth_weights"}},
          {{"kind", "overhead"}}};
}

std::string quick_question(const std::vector<std::string>& mechanisms) {
  std::string list;
  for (size_t i = 0; i < mechanisms.size(); ++i) {
    const char* before = i == 0 ? "" : i + 1 < mechanisms.size() ? ", " : " and ";
    list += before + mechanisms[i];
  }
  return fmt::format("Which of {} ends with the lowest validation loss?", list);
}

std::string quick_baseline(const std::vector<std::string>& mechanisms) {
  const std::string residual = residual_mechanism().text.name;
  const bool has = std::find(mechanisms.begin(), mechanisms.end(), residual) != mechanisms.end();
  return has ? residual : mechanisms.front();
}

// A size of the table, and what its runs take.
struct QuickSize {
  int64_t width = 0, parameters = 0;  // of the arm that has most
  double tokens_per_step = 0;
  TrainConfig train = {};            // but for what depends on the steps
  std::vector<Estimate> costs = {};  // by mechanism

  double steps_wanted() const {
    return std::ceil(kTokensPerParameter * static_cast<double>(parameters) / tokens_per_step);
  }
  double steps_of_text(const QuickAims& aims) const {
    return std::floor(kMostPasses * static_cast<double>(aims.text_tokens) / tokens_per_step);
  }
  // As many as are wanted, or as the text has.
  double steps(const QuickAims& aims) const {
    return std::min(steps_wanted(), steps_of_text(aims));
  }
  bool has_text(const QuickAims& aims) const {
    return steps(aims) * kTokensPerParameter >= steps_wanted() * kFewestTokens;
  }
  // What all runs and trials take, over the jobs.
  double seconds(double steps, const QuickAims& aims) const {
    TrainConfig run = train, trial = train;
    run.steps = static_cast<int64_t>(steps);
    run.eval_every = trial.eval_every = steps_between_looks(run.steps);
    trial.steps = trial_steps(run.steps);
    const auto trials = static_cast<double>(aims.tune ? quick_rates_tried(width).size() : 0);
    double seconds = 0;
    for (const Estimate& cost : costs) {
      seconds += static_cast<double>(aims.seeds) * run_seconds(run, cost) +
                 trials * run_seconds(trial, cost);
    }
    return seconds / static_cast<double>(aims.jobs);
  }
  // The most of which all runs fit the time, up to `most`.
  double steps_in_time(double most, const QuickAims& aims) const {
    double fit = 0, beyond = most + 1;
    while (fit + 1 < beyond) {
      const double middle = std::floor((fit + beyond) / 2);
      (seconds(middle, aims) <= aims.seconds ? fit : beyond) = middle;
    }
    return fit;
  }
};

Recipe recipe_of(int64_t width, const std::string& mechanism) {
  Json json = base_of(width, 1);
  json["model"]["depth_mixing"] = {{"type", mechanism}};
  return parse_recipe(json);
}

QuickSize measure_size(int64_t width, const QuickAims& aims, const SpeedOf& speed_of) {
  QuickSize size = {.width = width};
  for (const std::string& mechanism : aims.mechanisms) {
    const Recipe recipe = recipe_of(width, mechanism);
    const Estimate cost = estimate(recipe, recipe.tokenizer.vocab_size, speed_of(recipe));
    size.train = recipe.train;
    size.parameters = std::max(size.parameters, cost.parameters);
    size.tokens_per_step = static_cast<double>(recipe.train.batch_size * recipe.train.context);
    size.costs.push_back(cost);
  }
  return size;
}

QuickChoice choice_of(const QuickSize& size, double steps, const QuickAims& aims) {
  const auto whole = static_cast<int64_t>(steps);
  return {.base = base_of(size.width, whole),
          .parameters = size.parameters,
          .steps = whole,
          .tokens = static_cast<int64_t>(steps * size.tokens_per_step),
          .seconds = size.seconds(steps, aims),
          .why = {}};
}

// Why not this size, which is the next after the one that was chosen.
std::string why_not(const QuickSize& next, const QuickAims& aims) {
  if (!next.has_text(aims)) {
    return fmt::format(
        "A model of width {} would see fewer than {:.0f} tokens a parameter in {:.0f} passes over "
        "the text; give it more text for a larger model.",
        next.width, kFewestTokens, kMostPasses);
  }
  return fmt::format("A model of width {} would take {}; give it more --hours for a larger model.",
                     next.width, format_duration(next.seconds(next.steps(aims), aims)));
}

// The smallest size, for as long as text and time last.
QuickChoice choose_short(const QuickSize& size, const QuickAims& aims) {
  const double of_text = size.steps_of_text(aims);
  const double in_time = size.steps_in_time(size.steps_wanted(), aims);
  const bool is_text_short = of_text < in_time;
  const double steps = std::min(of_text, in_time);
  require(steps >= kFewestSteps || is_text_short,
          "--hours {}: the shortest comparison of {} takes about {} here; give it more time, fewer "
          "seeds or fewer mechanisms",
          format_duration(aims.seconds), counted(std::ssize(aims.mechanisms) * aims.seeds, "run"),
          format_duration(size.seconds(kFewestSteps, aims)));
  require(steps >= kFewestSteps,
          "--data: a text of {} is too short to compare models on; give it {} or more",
          format_bytes(static_cast<double>(aims.text_tokens)),
          format_bytes(kFewestSteps * size.tokens_per_step / kMostPasses));
  QuickChoice choice = choice_of(size, steps, aims);
  choice.why = fmt::format(
      "There is {} for {:.1f} tokens a parameter only, and models learn from {:.0f} or so: small "
      "differences may change with more.",
      is_text_short ? "text" : "time",
      static_cast<double>(choice.tokens) / static_cast<double>(choice.parameters),
      kTokensPerParameter);
  return choice;
}

}  // namespace

void RepeatedText::see(double passes) {
  if (!(passes > kMostPasses)) return;
  ++runs;
  most = std::max(most, passes);
}

std::string RepeatedText::sentence() const {
  return fmt::format("{} more than {:.0f} times over the text",
                     runs == 1 ? "one run goes" : fmt::format("{} runs go", runs), kMostPasses);
}

SpeedOf QuickSpeeds::speed_of() const {
  return [speeds = *this](const Recipe& recipe) -> MachineSpeed {
    const auto mixing = speeds.mixing.find(recipe.model.depth_mixing.name());
    return {.matmul = speeds.matmul,
            .copy = speeds.copy,
            .mixing = mixing == speeds.mixing.end() ? 0 : mixing->second};
  };
}

QuickSpeeds measure_quick_speeds(const std::vector<std::string>& mechanisms, int threads,
                                 const std::string& name) {
  if (const at::Device device(name); !device.is_cpu()) {
    QuickSpeeds speeds = {
        .matmul = measure_matmul(device, at::kFloat), .copy = measure_copy(device), .mixing = {}};
    for (const std::string& mechanism : mechanisms) speeds.mixing[mechanism] = 0;
    return speeds;
  }
  QuickSpeeds speeds = {
      .matmul = measure_matmul(threads), .copy = measure_copy(threads) * 1e9, .mixing = {}};
  for (const std::string& mechanism : mechanisms) {
    speeds.mixing[mechanism] = measure_mixing(recipe_of(kMeasuredAt, mechanism).model, threads);
  }
  return speeds;
}

QuickChoice choose_quick_study(const QuickAims& aims, const QuickSpeeds& speeds) {
  const SpeedOf speed_of = speeds.speed_of();
  std::optional<QuickSize> chosen;
  std::string why = "It is the largest size that compare chooses; attnres study trains any.";
  for (const int64_t width : kQuickWidths) {
    const QuickSize size = measure_size(width, aims, speed_of);
    if (!size.has_text(aims) || size.seconds(size.steps(aims), aims) > aims.seconds) {
      if (!chosen) return choose_short(size, aims);
      why = why_not(size, aims);
      break;
    }
    chosen = size;
  }
  QuickChoice choice = choice_of(*chosen, chosen->steps(aims), aims);
  choice.why = why;
  return choice;
}

// Falling with the width as in recipes/, which have 0.003 at 128.
double quick_rate(int64_t width) {
  return std::round(3e4 * std::sqrt(128.0 / static_cast<double>(width))) / 1e7;
}

std::vector<double> quick_rates_tried(int64_t width) {
  std::vector<double> rates;
  for (const double factor : {0.25, 0.5, 1.0, 2.0}) {
    rates.push_back(std::stod(fmt::format("{:.3g}", factor * quick_rate(width))));
  }
  return rates;
}

std::string quick_rate_sentence(int64_t width, bool tune) {
  if (!tune) {
    return fmt::format(
        "All have the learning rate 0.003 sqrt(128 / width) = {:g}, which is tuned to none of "
        "them: --tune tries four for each.",
        quick_rate(width));
  }
  std::string rates;
  for (const double rate : quick_rates_tried(width)) {
    rates += fmt::format("{}{:g}", rates.empty() ? "" : ", ", rate);
  }
  return fmt::format(
      "Each has the learning rate that is best for it in trials of a quarter of the steps, with "
      "seed 1: one of {}, which are 1/4, 1/2, 1 and 2 times 0.003 sqrt(128 / width).",
      rates);
}

void require_mechanisms(const std::vector<std::string>& names) {
  require_usage(!names.empty(), "--mechanisms: name at least one; attnres mechanisms lists them");
  const std::vector<std::string> known = mechanism_names();
  std::set<std::string> seen;
  for (const std::string& name : names) {
    require_usage(std::find(known.begin(), known.end(), name) != known.end(),
                  "--mechanisms {}: no such mechanism, did you mean {}? attnres mechanisms lists "
                  "them",
                  one_line(name), nearest(name, known));
    require_usage(seen.insert(name).second, "--mechanisms: {} is named twice", name);
  }
}

StudyRecipe quick_study(const Json& base, const std::vector<std::string>& mechanisms, int64_t seeds,
                        bool tune) {
  StudyRecipe study = {.name = kQuickName,
                       .question = quick_question(mechanisms),
                       .claim = {},
                       .base = base.dump(),
                       .axes = {{kMixing, {}}},
                       .baseline = {{kMixing, quick_baseline(mechanisms)}},
                       .seeds = seeds,
                       .tune = {},
                       .figures = quick_figures().dump(),
                       .inspect = false,
                       .weights = {},
                       .smoke = read_overrides("smoke", quick_smoke())};
  for (const std::string& mechanism : mechanisms) {
    study.axes[0].arms.push_back(arm_of(mechanism));
  }
  if (tune) study.tune = read_tuning(study, quick_tuning(base));
  return study;
}

Json quick_study_json(const StudyRecipe& study) {
  const auto as_object = [](const std::vector<std::string>& overrides) {
    Json object = Json::object();
    for (const std::string& assignment : overrides) {
      const std::string key = key_of(assignment);
      object[key] = parse_json(assignment.substr(key.size() + 1), key);
    }
    return object;
  };
  Json arms = Json::object();
  for (const StudyArm& arm : study.axes[0].arms) arms[arm.name] = as_object(arm.overrides);
  Json json = {{"name", study.name},
               {"question", study.question},
               {"base", parse_json(study.base, "base")},
               {"axes", {{kMixing, arms}}},
               {"baseline", {{kMixing, study.baseline[0].second}}},
               {"seeds", study.seeds},
               {"figures", parse_json(study.figures, "figures")},
               {"smoke", as_object(study.smoke)}};
  if (study.tune) json["tune"] = quick_tuning(json["base"]);
  if (const Json chosen = parse_json(study.chosen, "chosen"); !chosen.is_null()) {
    json["chosen"] = chosen;
  }
  return json;
}

QuickNotes read_quick_notes(const StudyRecipe& study) {
  const Json chosen = parse_json(study.chosen, "chosen");
  QuickNotes notes;
  if (const Json* reasons = find(chosen, "/for")) notes.reasons = *reasons;
  if (const Json* sentences = find(chosen, "/sentences"); sentences && sentences->is_array()) {
    for (const Json& sentence : *sentences) {
      if (sentence.is_string()) notes.sentences.push_back(sentence);
    }
  }
  QuickSpeeds speeds = {.matmul = measured_at(find(chosen, "/speeds/matmul")),
                        .copy = measured_at(find(chosen, "/speeds/copy")),
                        .mixing = {}};
  if (const Json* mixing = find(chosen, "/speeds/mixing"); mixing && mixing->is_object()) {
    for (const auto& [mechanism, number] : mixing->items()) {
      if (const double known = measured_in(number); known >= 0) speeds.mixing[mechanism] = known;
    }
  }
  if (speeds.matmul > 0 && speeds.copy > 0) notes.speeds = std::move(speeds);
  return notes;
}

std::vector<std::string> mechanisms_of(const StudyRecipe& study) {
  const StudyAxis* mixing = study.find(kMixing);
  require(study.name == kQuickName && mixing != nullptr && study.axes.size() == 1 &&
              study.baseline.size() == 1,
          "the study {} is not one that compare made; choose another --out", study.name);
  std::vector<std::string> names;
  for (const StudyArm& arm : mixing->arms) names.push_back(arm.name);
  return names;
}

}  // namespace attnres
