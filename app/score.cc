// The score subcommand.
#include "attnres/infer/score.h"

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/commands.h"
#include "app/options.h"
#include "app/processes.h"
#include "app/token_ids.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"

namespace attnres {
namespace {

struct ScoreOptions {
  ModelOption model;
  MachineOptions machine;
  PrecisionOption precision;
  std::string ids;
  std::string ids_file;
  bool json = false;
};

struct Score {
  std::vector<int32_t> ids;
  std::vector<double> logprobs;
};

Score score(const OpenedInference& opened, std::vector<int32_t> ids) {
  Score result;
  result.logprobs = score_sequence(*opened.model, ids, opened.context);
  result.ids = std::move(ids);
  return result;
}

// The ids of `text`, if the model can score them.
std::vector<int32_t> checked_ids(const OpenedInference& opened, const std::string& text) {
  std::vector<int32_t> ids = parse_ids(text);
  check_sequence(opened.model->transformer(), ids, opened.context);
  return ids;
}

// The file's sequences. All are checked, so that scoring does not end halfway.
std::vector<std::vector<int32_t>> read_sequences(const OpenedInference& opened,
                                                 const std::string& path) {
  std::vector<std::vector<int32_t>> sequences;
  std::istringstream lines(read_file(path));
  std::string text;
  for (int64_t line = 1; std::getline(lines, text); ++line) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      sequences.push_back(checked_ids(opened, text));
    } catch (const Error& e) {
      fail("{}, line {}: {}", path, line, e.what());
    }
  }
  require(!sequences.empty(), "{}: no token ids in this file; expected a sequence a line", path);
  return sequences;
}

void print_json(const Score& score) {
  fmt::print("{}\n", Json{{"ids", score.ids}, {"logprobs", score.logprobs}}.dump());
}

void print_table(const Score& score) {
  fmt::print("position        id   log p (nats)\n{:8}  {:8}\n", 0, score.ids[0]);
  double sum = 0;
  for (size_t t = 1; t < score.ids.size(); ++t) {
    fmt::print("{:8}  {:8}  {:13.6f}\n", t, score.ids[t], score.logprobs[t - 1]);
    sum += score.logprobs[t - 1];
  }
  fmt::print("sum                 {:13.6f}\n", sum);
}

void score_here(const ScoreOptions& options, const MakeInferenceModel& make) {
  require_usage(options.ids.empty() != options.ids_file.empty(),
                "score: expected either --ids 5,17,3 or --ids-file FILE");
  const OpenedInference opened = open_model(options.model, options.precision, make);
  if (!options.ids_file.empty()) {
    for (auto& ids : read_sequences(opened, options.ids_file)) {
      print_json(score(opened, std::move(ids)));
    }
    return;
  }
  std::vector<int32_t> ids;
  try {
    ids = checked_ids(opened, options.ids);
  } catch (const Error& e) {
    fail_usage("--ids: {}", e.what());
  }
  const Score result = score(opened, std::move(ids));
  options.json ? print_json(result) : print_table(result);
}

void run_score(const CLI::App& command, const ScoreOptions& options) {
  run_in_group(command, options.machine, part_of_model(options.model, options.precision),
               [&](const MakeInferenceModel& make) { score_here(options, make); });
}

}  // namespace

void add_score_command(CLI::App& app) {
  CLI::App& command =
      *app.add_subcommand("score",
                          "Score token ids: the log-probability of each after the first. It is in "
                          "nats, and no tokenizer is needed.");
  const auto options = std::make_shared<ScoreOptions>();
  options->model.add_to(command);
  CLI::Option* ids =
      add_option(command, "--ids IDS", options->ids, "token ids, separated by commas");
  add_path(
      command, "--ids-file FILE", options->ids_file,
      "a file with a sequence on each line, of which blank ones are passed over; prints a JSON "
      "object for each")
      ->excludes(ids);
  command.add_flag("--json", options->json, "print JSON: {\"ids\": [...], \"logprobs\": [...]}");
  options->precision.add_to(command);
  options->machine.add_to(command);
  command.footer(
      "Several processes share a model's layers where mpirun or srun starts them:\n"
      "docs/parallel.md.\n\n"
      "Examples:\n"
      "  attnres score --model runs/tiny --ids 5,17,3\n"
      "  attnres score --model runs/tiny --ids-file sequences.txt > scores.jsonl");
  command.callback([&command, options] { run_score(command, *options); });
}

}  // namespace attnres
