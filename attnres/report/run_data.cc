#include "attnres/report/run_data.h"

#include <algorithm>
#include <cmath>

#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/told_numbers.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

// More of them in a file are a mistake.
constexpr int kMostSites = 4096;
constexpr size_t kMostSources = 2048;

std::string text_in(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

int64_t step_of(const Json& line) {
  return line.at("step").get<int64_t>();
}

// In the recipe's own words, not as a DepthMixing: the run may be of a version that knows other
// mechanisms and settings.
void read_depth_mixing(RunData& run) {
  const Json* mixing = find(run.record, "/recipe/model/depth_mixing");
  if (mixing == nullptr || !mixing->is_object()) return;
  run.mechanism = text_in(*mixing, "type");
  run.residual = run.mechanism == residual_mechanism().text.name;
  const auto size = mixing->find("block_size");
  if (run.mechanism == block_attn_res_mechanism().text.name && size != mixing->end() &&
      size->is_number_integer()) {
    run.block_size = count_in(*size).value_or(0);
  }
}

void read_metrics(RunData& run) {
  for (const Json& line : read_run_log(run.path / "metrics.jsonl", run.notes)) {
    const int64_t step = step_of(line);
    if (run.metrics.empty() || run.metrics.back().step != step) {
      run.metrics.emplace_back().step = step;
    }
    const auto read = [&](const char* key, double& value, double most = INFINITY) {
      const double measured = measured_at(line, key);
      if (measured <= most) value = measured;
    };
    constexpr double kMostCounted = 0x1p53;  // these are shown as whole numbers
    Metric& metric = run.metrics.back();
    read("tokens", metric.tokens, kMostCounted);
    read("seconds", metric.seconds, kMostCounted);
    read("loss", metric.loss);
    read("val_loss", metric.val_loss);
    read("lr", metric.learning_rate);
    read("tokens_per_second", metric.tokens_per_second, kMostCounted);
  }
}

void read_probes(RunData& run) {
  for (const Json& line : read_run_log(run.path / "probes.jsonl", run.notes)) {
    const double site = measured_at(line, "site");
    const auto value = line.find("value");
    if (!(site >= 0 && site < kMostSites) || value == line.end()) continue;
    std::vector<double> values;
    if (value->is_array()) {
      if (value->size() > kMostSources) continue;
      for (const Json& item : *value) values.push_back(measured_in(item));
    } else {
      values.push_back(measured_at(line, "value"));
    }
    run.probes[text_in(line, "name")][step_of(line)][int(site)] = std::move(values);
  }
}

void read_trace(RunData& run) {
  const fs::path path = run.path / "trace.json";
  if (!path_exists(path)) return;
  try {
    run.trace = read_json(path);
  } catch (const Error&) {
    run.notes.emplace_back("trace.json cannot be read");
  }
}

void read_samples(RunData& run) {
  for (const Json& line : read_run_log(run.path / "samples.jsonl", run.notes)) {
    run.samples.push_back({step_of(line), text_in(line, "prompt"), text_in(line, "text")});
  }
}

void note_missing(RunData& run) {
  const auto measured = [&](double Metric::*value) {
    return std::count_if(run.metrics.begin(), run.metrics.end(),
                         [&](const Metric& m) { return !std::isnan(m.*value); });
  };
  if (!run.metrics.empty()) {
    if (measured(&Metric::loss) == 0) run.notes.push_back("no finite training loss");
    if (measured(&Metric::val_loss) == 0) run.notes.push_back("no validation loss was measured");
    if (run.metrics.size() == 1) run.notes.push_back("a single logged step");
    const Json* steps = find(run.record, "/recipe/train/steps");
    const int64_t last = run.metrics.back().step;
    if (run.diverged_at) {
      run.notes.push_back(fmt::format("diverged at step {}", *run.diverged_at));
    } else if (const auto all = count_at(steps); all && last + 1 < *all) {
      run.notes.push_back(fmt::format("its log ends at step {} of {}", last, *all));
    }
  } else {
    run.notes.push_back("no training step was logged");
  }
  if (run.layers == 0) run.notes.push_back("run.json has no recipe.model.layers");
}

RunData read_run(const fs::path& path) {
  static constexpr const char* kExpected =
      "expected a folder that a training run wrote, with run.json and metrics.jsonl in it";
  require(path_exists(path), "{}: no such folder; {}", path.string(), kExpected);
  require(fs::is_directory(path), "{}: not a run folder: it is a file; {}", path.string(),
          kExpected);
  require(path_exists(path / "run.json"), "{}: not a run folder: it has no run.json; {}",
          path.string(), kExpected);
  RunData run;
  run.path = path;
  run.record = read_json(path / "run.json");
  require(run.record.is_object(), "{}: expected an object with \"recipe\", \"data\", ..., came {}",
          (path / "run.json").string(), run.record.type_name());

  if (const Json* name = find(run.record, "/recipe/name"); name && name->is_string()) {
    run.label = name->get<std::string>();
  }
  if (run.label.empty()) run.label = fs::canonical(path).filename().string();
  read_depth_mixing(run);
  if (const Json* layers = find(run.record, "/recipe/model/layers");
      layers && layers->is_number_integer()) {
    run.layers = int(std::clamp<int64_t>(layers->get<int64_t>(), 0, kMostSites / 2));
  }
  if (const Json* step = find(run.record, "/diverged/step")) run.diverged_at = count_in(*step);
  read_metrics(run);
  read_probes(run);
  read_samples(run);
  read_trace(run);
  note_missing(run);
  return run;
}

// Runs that share a name are told apart by their folders' names, or else by their paths.
void distinguish_labels(std::vector<RunData>& runs) {
  std::map<std::string, int> uses, folder_uses;
  const auto folder_of = [](const RunData& run) {
    return fs::canonical(run.path).filename().string();
  };
  for (const RunData& run : runs) {
    ++uses[run.label];
    ++folder_uses[folder_of(run)];
  }
  for (RunData& run : runs) {
    if (uses[run.label] == 1) continue;
    const std::string folder = folder_of(run);
    if (folder_uses[folder] > 1) {
      run.label += " (" + run.path.string() + ")";
    } else if (folder.starts_with(run.label)) {
      run.label = folder;
    } else {
      run.label += " (" + folder + ")";
    }
  }
}

}  // namespace

Json number_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

std::vector<Json> read_run_log(const fs::path& path, std::vector<std::string>& notes) {
  const std::string file = path.filename().string();
  if (!path_exists(path)) {
    notes.push_back("no " + file);
    return {};
  }
  const std::string text = read_file(path);
  std::vector<Json> lines;
  int skipped = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t newline = text.find('\n', begin);
    const size_t end = std::min(newline, text.size());
    Json line;
    try {
      line = parse_json(std::string_view(text).substr(begin, end - begin), file);
    } catch (const Error&) {  // counted below
    }
    begin = end + 1;
    if (!line.is_object() || !line.contains("step") || !count_in(line["step"])) {
      skipped += newline != std::string::npos;  // the last line may still be being written
      continue;
    }
    const int64_t step = step_of(line);
    if (!lines.empty() && step < step_of(lines.back())) {
      while (!lines.empty() && step_of(lines.back()) >= step) lines.pop_back();
    }
    lines.push_back(std::move(line));
  }
  if (skipped > 0) {
    notes.push_back(fmt::format("{}: {} line{} skipped, not an object with a whole-number \"step\"",
                                file, skipped, skipped == 1 ? "" : "s"));
  }
  return lines;
}

std::vector<RunData> read_runs(const std::vector<fs::path>& paths) {
  require_usage(!paths.empty(), "report: name at least one run folder");
  std::vector<RunData> runs;
  for (const fs::path& path : paths) {
    runs.push_back(read_run(path));
    for (size_t i = 0; i + 1 < runs.size(); ++i) {
      require_usage(!fs::equivalent(runs[i].path, path), "report: {} is named twice",
                    path.string());
    }
  }
  distinguish_labels(runs);
  return runs;
}

ProbeSnapshot last_probe(const RunData& run, const std::string& name) {
  ProbeSnapshot last;
  const auto probe = run.probes.find(name);
  if (probe == run.probes.end()) return last;
  for (const auto& [step, sites] : probe->second) {
    if (sites.size() >= last.sites.size()) last = {step, sites};
  }
  return last;
}

const Metric* last_validation(const RunData& run) {
  const auto last = std::find_if(run.metrics.rbegin(), run.metrics.rend(),
                                 [](const Metric& m) { return !std::isnan(m.val_loss); });
  return last == run.metrics.rend() ? nullptr : &*last;
}

const Json* find(const Json& json, std::string_view pointer) {
  const Json::json_pointer path{std::string(pointer)};
  return json.contains(path) ? &json.at(path) : nullptr;
}

}  // namespace attnres
