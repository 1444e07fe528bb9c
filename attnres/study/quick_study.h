// The shortest way from a text to a comparison: mechanisms at one size, which is chosen for the
// time there is, some seeds each.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "attnres/study/study_plan.h"
#include "attnres/study/study_recipe.h"
#include "attnres/support/json.h"
#include "attnres/train/estimate/estimate.h"

namespace attnres {

inline constexpr double kTokensPerParameter = 20;  // trained on, of a model that is trained enough
inline constexpr double kFewestTokens = 10;        // a parameter, where there is no more text
inline constexpr double kMostPasses = 4;           // over the text; more teach little
inline constexpr const char* kComparisonFile = "compare.json";  // in its folder: what was chosen
inline constexpr int64_t kFewestSteps = 100;  // of a run; fewer say nothing of a mechanism

// Runs that go over their text more than kMostPasses times.
struct RepeatedText {
  int64_t runs = 0;
  double most = 0;  // passes of one of them

  void see(double passes);       // of one run; NaN where that is not known
  std::string sentence() const;  // "3 runs go more than 4 times over the text"
};

struct QuickAims {
  std::vector<std::string> mechanisms;
  int64_t seeds = 3;
  double seconds = 3600;    // for all runs
  int64_t text_tokens = 0;  // to train on: bytes
  int64_t jobs = 1;         // runs side by side, each at the speed that choose_quick_study is given
  bool tune = false;        // whether trials choose each mechanism's learning rate
};

// How fast the machine is at what a comparison computes.
struct QuickSpeeds {
  double matmul = 0, copy = 0;           // of MachineSpeed
  std::map<std::string, double> mixing;  // of MachineSpeed, by mechanism; 0 of those not in it

  SpeedOf speed_of() const;
};
// `name`: of the device; on another than "cpu" those of products and copies alone.
QuickSpeeds measure_quick_speeds(const std::vector<std::string>& mechanisms, int threads,
                                 const std::string& name = "cpu");

struct QuickChoice {
  Json base;  // the recipe: a residual model of 8 Transformer layers
  int64_t parameters = 0, steps = 0, tokens = 0;  // of a run
  double seconds = 0;  // of all runs, evaluation and trials included: as plan_costs says
  std::string why;     // this size, in a sentence or two
};

// The largest of a table of models whose runs all fit the time and see kTokensPerParameter, or,
// where the text has less in kMostPasses, kFewestTokens at least. Where not even the smallest does,
// that one, as long as there is text and time. The learning rate is 0.003 sqrt(128 / width). Throws
// Error where there is text or time for fewer than kFewestSteps.
QuickChoice choose_quick_study(const QuickAims& aims, const QuickSpeeds& speeds);

// The learning rate that all arms have where none is tuned, and which are tried where it is.
double quick_rate(int64_t width);
std::vector<double> quick_rates_tried(int64_t width);
// In a sentence, for people.
std::string quick_rate_sentence(int64_t width, bool tune);

// Throws UsageError for a name that is no mechanism, with the nearest, for one that is there twice,
// and for none.
void require_mechanisms(const std::vector<std::string>& names);

// The study "compare", with an axis "mixing" whose arms are the mechanisms with their defaults. The
// baseline is residual, or the first where that is not among them. With `tune` each mechanism has
// the learning rate that is best for it among quick_rates_tried, in trials of a quarter of the
// steps.
StudyRecipe quick_study(const Json& base, const std::vector<std::string>& mechanisms, int64_t seeds,
                        bool tune = false);
// One that quick_study made, as read_study reads it from a file.
Json quick_study_json(const StudyRecipe& study);
// What compare keeps of its choice, in StudyRecipe::chosen. What is not there, or of another type,
// is empty.
struct QuickNotes {
  Json reasons = {};  // what the choice was made for
  std::optional<QuickSpeeds> speeds = {};
  std::vector<std::string> sentences = {};
};
QuickNotes read_quick_notes(const StudyRecipe& study);

// What it compares. Throws Error where quick_study has not made it.
std::vector<std::string> mechanisms_of(const StudyRecipe& study);

}  // namespace attnres
