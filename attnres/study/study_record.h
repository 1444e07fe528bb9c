// study.json: what a study was begun with, and what its runs have reached.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "attnres/report/run_data.h"
#include "attnres/support/json.h"

namespace attnres {

enum class RunState {
  waiting,  // for trials that choose a setting of it
  missing,
  unfinished,
  done,
  failed,
  diverged,  // a trial: its value is known to be too large
};
const char* name_of(RunState state);

// What there is to know of a run. Numbers that were not measured are NaN.
struct StudyRunRecord {
  std::string name = {};
  std::vector<std::string> arms = {};  // one of each axis; "" where the run has none of it
  int64_t seed = 0;
  bool is_trial = false;  // of learning rates: in no table or figure of arms
  RunState state = RunState::missing;
  int64_t step = 0, steps = 0, parameters = 0;
  double tokens = kNotMeasured;  // so far
  double flops = kNotMeasured;   // of the whole run, of matrix products, two a multiply-add
  std::string from = {};         // the run whose weights it begins with; or ""
  double seconds = kNotMeasured;
  double peak_bytes = kNotMeasured;                                    // of memory
  double final_val_loss = kNotMeasured, best_val_loss = kNotMeasured;  // nats per token
  int64_t best_step = 0;
  std::string error = {};  // why it failed, on one line

  bool is_done() const { return state == RunState::done; }
  // Whether there is nothing left to train.
  bool has_ended() const { return is_done() || state == RunState::diverged; }
};

struct StudyRecord {
  std::string name = {}, question = {};
  std::string claim = {};                            // what the report says
  std::vector<std::string> axes = {};                // their names
  std::map<std::string, std::string> baseline = {};  // the arm of each axis that is one
  std::vector<Json> figures = {};                    // objects with "kind"
  // Files and folders of text, absolute; empty: the text that training takes by itself, and to
  // validate on a part of it.
  std::vector<std::string> data = {}, validation = {};
  int threads = 0;             // of each run; 0: unknown
  std::string device = "cpu";  // where runs compute, or did last
  Json tuning = {};            // of tuning_json; null: no setting was tuned
  Json chosen = {};            // of StudyRecipe: how its model was chosen; or null
  bool smoke = false;          // whether every run is tiny
  std::vector<StudyRunRecord> runs = {};

  // What a page says of `chosen`.
  std::vector<std::string> chosen_sentences() const;
};

// A run of it, with its arms by axis, and null for what was not measured.
Json run_json(const StudyRecord& study, const StudyRunRecord& run);
Json study_json(const StudyRecord& study);

// The other way round. What an older version did not write, and values of another type than
// expected, are as if nothing was known. Throws Error, naming `what`, where there are no runs, or
// one has no name or one that is no file's.
StudyRecord parse_study_json(const Json& json, const std::string& what);

}  // namespace attnres
