// The diagnose subcommand.
#include <ATen/core/ScalarType.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/options.h"
#include "attnres/conformance/diagnosis.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/json.h"

namespace attnres {
namespace {

struct DiagnoseOptions {
  std::string file;
  bool json = false;
};

std::string dtype_name(at::ScalarType dtype) {
  return dtype == at::kDouble ? "float64" : dtype == at::kFloat ? "float32" : "bfloat16";
}

std::string describe(const VectorError& error) {
  return fmt::format("{}: {:.1e} of {:g} allowed in {}", error.name, error.error, error.tolerance,
                     dtype_name(error.dtype));
}

void print(const Diagnosis& diagnosis) {
  const auto line = [&](const std::string& text) {
    fmt::print("{}: {}; {} of {} found{}\n", diagnosis.entry, text, diagnosis.found,
               counted(diagnosis.results, "result"),
               diagnosis.has_gradients ? "" : ", no gradients");
  };
  if (diagnosis.matches()) {
    return line(fmt::format("matches, largest error {}", describe(diagnosis.worst)));
  }
  line(diagnosis.mistakes.empty() ? "none of the known mistakes"
                                  : std::string(diagnosis.mistakes[0].mistake.text));
  fmt::print("  departs first at {}\n", describe(*diagnosis.departure));
  for (const Diagnosis::Match& match : diagnosis.mistakes) {
    fmt::print("  numbers are those of {}, largest error {}\n", match.mistake.name,
               describe(match.worst));
  }
  if (diagnosis.partly) {
    fmt::print("  numbers before {} are those of {}: {}\n", diagnosis.partly->departure->name,
               diagnosis.partly->mistake.name, diagnosis.partly->mistake.text);
  }
}

Json as_json(const VectorError& error) {
  return {{"tensor", error.name},
          {"dtype", dtype_name(error.dtype)},
          {"error", std::isfinite(error.error) ? Json(error.error) : Json()},
          {"tolerance", error.tolerance}};
}

Json as_json(const std::optional<VectorError>& error) {
  return error ? as_json(*error) : Json();
}

Json as_json(const Diagnosis::Match& match) {
  return {{"name", match.mistake.name},
          {"text", match.mistake.text},
          {"worst", as_json(match.worst)},
          {"departure", as_json(match.departure)}};
}

Json as_json(const Diagnosis& diagnosis) {
  Json mistakes = Json::array();
  for (const Diagnosis::Match& match : diagnosis.mistakes) mistakes.push_back(as_json(match));
  return {{"entry", diagnosis.entry},
          {"matches", diagnosis.matches()},
          {"found", diagnosis.found},
          {"results", diagnosis.results},
          {"has_gradients", diagnosis.has_gradients},
          {"worst", as_json(diagnosis.worst)},
          {"departure", as_json(diagnosis.departure)},
          {"mistakes", mistakes},
          {"partly", diagnosis.partly ? as_json(*diagnosis.partly) : Json()}};
}

void run_diagnose(const DiagnoseOptions& options) {
  const std::vector<Diagnosis> diagnoses = diagnose(options.file);
  const auto wrong = std::count_if(diagnoses.begin(), diagnoses.end(),
                                   [](const Diagnosis& one) { return !one.matches(); });
  if (options.json) {
    Json entries = Json::array();
    for (const Diagnosis& diagnosis : diagnoses) entries.push_back(as_json(diagnosis));
    fmt::print("{}\n", Json{{"ok", wrong == 0}, {"entries", entries}}.dump(2));
  } else {
    for (const Diagnosis& diagnosis : diagnoses) print(diagnosis);
  }
  require(wrong == 0, "diagnose: {} of {} {} not match", wrong,
          counted(std::ssize(diagnoses), "entry"), wrong == 1 ? "does" : "do");
}

}  // namespace

void add_diagnose_command(CLI::App& app) {
  CLI::App& command =
      *app.add_subcommand("diagnose",
                          "Say what is wrong with another program's results. "
                          "Compares those on the test vectors with ours, and names the known "
                          "mistake that they show. Exit code 0: everything matches.");
  const auto options = std::make_shared<DiagnoseOptions>();
  add_path(command, "file FILE", options->file,
           "a safetensors file of results (mixed, input, gradient), or any part of them, named as "
           "attnres vectors names them")
      ->required();
  command.add_flag("--json", options->json, "print JSON");
  command.footer("Example:\n  attnres diagnose mine.safetensors");
  command.callback([options] { run_diagnose(*options); });
}

}  // namespace attnres
