#include "attnres/train/run_folder/run_events.h"

#include <charconv>
#include <cmath>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "attnres/model/depth_weights.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/told_numbers.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

// When the run began: as its event file's name says, or now.
int64_t start_of(const RunPaths& paths) {
  for (const auto& entry : fs::directory_iterator(paths.folder)) {
    const std::string name = entry.path().filename().string();
    int64_t start = 0;
    if (name.starts_with(kPrefix) &&
        std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), start).ec ==
            std::errc() &&
        count_in(start)) {
      return start;
    }
  }
  return static_cast<int64_t>(std::time(nullptr));
}

fs::path path_of(const RunPaths& paths, int64_t start) {
  return paths.folder / fmt::format("{}{}.attnres", kPrefix, start);
}

std::vector<Json> read_log(const fs::path& path) {
  std::vector<Json> lines;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line);) {
    const Json& read = lines.emplace_back(parse_json(line, path.string()));
    require(read.is_object() && read.contains("step") && count_in(read["step"]),
            "{}: line {}: expected an object with a whole-number \"step\", got {}; it was changed",
            path.string(), lines.size(), shown(read));
  }
  return lines;
}

// The keys of metrics.jsonl.
const std::vector<std::pair<const char*, const char*>> kTags = {
    {"loss", "loss/train"},
    {"val_loss", "loss/validation"},
    {"lr", "training/learning_rate"},
    {"grad_norm", "training/gradient_norm"},
    {"tokens_per_second", "training/tokens_per_second"}};

}  // namespace

RunEvents::RunEvents(const RunPaths& paths, int sublayers)
    : sublayers_(sublayers),
      start_(static_cast<double>(start_of(paths))),
      file_(path_of(paths, static_cast<int64_t>(start_)), start_) {
  std::map<int64_t, std::vector<Json>> probes;
  for (Json& line : read_log(paths.probes())) {
    const auto step = line.at("step").get<int64_t>();
    probes[step].push_back(std::move(line));
  }
  for (const Json& line : read_log(paths.metrics())) {
    add(line, probes[line.at("step").get<int64_t>()]);
  }
}

void RunEvents::add(const Json& metrics, const std::vector<Json>& probes) {
  std::vector<Scalar> scalars;
  for (const auto& [key, tag] : kTags) {
    const double value = measured_at(metrics, key);
    if (!std::isnan(value)) scalars.push_back({tag, value});
  }
  for (const Json& probe : probes) {
    const double value = measured_at(probe, "value"), place = measured_at(probe, "site");
    const auto name = probe.find("name");
    const bool is_known = place >= 0 && place <= sublayers_ && name != probe.end();
    if (std::isnan(value) || !is_known || !name->is_string()) continue;
    const int site = static_cast<int>(place);
    scalars.push_back(
        {fmt::format("{}/{:02} {}", name->get<std::string>(), site, site_name(site, sublayers_)),
         value});
  }
  const double seconds = measured_at(metrics, "seconds");
  file_.add(metrics.at("step").get<int64_t>(), start_ + (std::isnan(seconds) ? 0 : seconds),
            scalars);
}

}  // namespace attnres
