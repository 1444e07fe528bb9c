// What several subcommands share.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attnres/data/evaluation_batches.h"
#include "attnres/infer/inference_model.h"
#include "attnres/model/transformer.h"
#include "attnres/parameters/precision.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// Checks an option that takes a whole number, before it is read: what does not fit is refused.
CLI::Validator whole_number(uint64_t least, uint64_t most = INT64_MAX);
// The same of any number.
CLI::Validator number(double least = -INFINITY, double most = INFINITY);

// Takes "2h", "90m", "45s" or "1.5d", and gives seconds. A number without a unit is of the one that
// `unit` names, and refused where that is 0.
CLI::Validator duration(double least, double most, char unit = '\0');

// Checks an option that takes one of these words. Completions offer them.
CLI::Validator one_word_of(const std::vector<std::string>& words);

// Takes what stands between blanks.
CLI::Validator without_blanks();

// Takes paths: not empty, and as without the slashes that completion leaves at their ends.
CLI::Validator file_path();

// Adds an option to a command. `name` is "--set KEY=VALUE": the option, and what its value is
// called in the help. Completions go by that: FILE and PATH are files, DIR and RUN folders, RECIPE,
// STUDY, MECHANISM and COMMAND names that the program knows (help_completion.cc).
template <class T>
CLI::Option* add_option(CLI::App& command, const std::string& name, T& value,
                        const std::string& description) {
  const size_t space = name.find(' ');
  return command.add_option(name.substr(0, space), value, description)
      ->type_name(name.substr(space + 1));
}
// Of a path, or of paths.
template <class T>
CLI::Option* add_path(CLI::App& command, const std::string& name, T& value,
                      const std::string& description) {
  return add_option(command, name, value, description)->transform(file_path());
}
// Of a whole number.
struct WholeLimits {
  uint64_t least, most = INT64_MAX;
};
template <class T>
CLI::Option* add_whole(CLI::App& command, const std::string& name, T& value, WholeLimits limits,
                       const std::string& description) {
  return add_option(command, name, value, description)
      ->check(whole_number(limits.least, limits.most));
}

// Puts options that are there already into a group of the command's help.
void group_options(CLI::App& command, const std::string& group,
                   const std::vector<std::string>& names);
// What a group is called that says with what a command computes.
inline constexpr const char* kComputing = "Computing";

// Where the work runs: --threads and --device.
struct MachineOptions {
  int64_t threads = 0;  // 0 where it is not given: one for each core
  std::string device = "cpu";

  void add_to(CLI::App& command);
  // --threads alone, of a command that computes no model.
  void add_threads_to(CLI::App& command);
  // Sets the number of threads, and the device of the process. Throws UsageError where there
  // is no such device.
  void apply() const;
};

// --device NAME, whose name alone is checked.
CLI::Option* add_device(CLI::App& command, std::string& device, const std::string& description);
// Throws UsageError where the folder of --out lies in one of the folders that --data names: the
// text would not be the same afterwards.
void require_out_beside(const std::filesystem::path& out, const std::vector<std::string>& data);

// Which model: --model, a model directory, a run's folder or a GGUF file. It must be given, unless
// the option that is returned is made optional.
struct ModelOption {
  std::string path, adapter = {};

  // --model, which is returned, and --adapter.
  CLI::Option* add_to(CLI::App& command);
  ModelDirectory open() const;
};

// In which dtype a model computes, and how its weights are kept: --precision, --weights, --mlock.
struct PrecisionOption {
  std::string name = kFloat32Precision;
  std::string weights = {};  // empty where it is not given: as the model's file has them
  bool lock = false;

  void add_to(CLI::App& command);
  // Without --precision.
  void add_weights_to(CLI::App& command);
  // The precision for this model. Throws UsageError where this processor cannot.
  Precision get(const ModelDirectory& model) const;
};

// Whether what the model's generation_config.json says of sampling counts: --generation-config.
struct GenerationConfigOption {
  std::string source = "model";

  void add_to(CLI::App& command);
  bool is_read() const { return source == "model"; }
};

struct OpenedDirectory {
  ModelDirectory directory;
  int64_t context;

  // Throws Error when there is none, or one with more tokens than the model has embeddings.
  std::unique_ptr<Tokenizer> tokenizer() const;
  // Null where there is none that is read here, as token ids need none; then `why` says why.
  std::unique_ptr<Tokenizer> tokenizer_if_read(std::string* why = nullptr) const;
  // Token ids alone (text/ids.h) where there is none that is read here.
  std::unique_ptr<Tokenizer> tokenizer_or_ids() const;
};

// What of the model's files is not read, on standard error: a line each.
void print_notes(const ModelDirectory& directory);

// With its numbers in float32, each a parameter; what an adapter adds is merged in.
struct OpenedModel : OpenedDirectory {
  std::unique_ptr<Transformer> model;
};
OpenedModel open_model(const ModelOption& option);
// With weights as they are stored, to look at.
OpenedModel open_stored_model(const ModelOption& option);

// To compute with.
struct OpenedInference : OpenedDirectory {
  std::unique_ptr<InferenceModel> model;
};
OpenedInference open_model(const ModelOption& option, const PrecisionOption& precision,
                           const MakeInferenceModel& make = make_local_model);
// The part of it that another rank of a tensor group has. The options must outlive it.
LoadTransformer part_of_model(const ModelOption& option, const PrecisionOption& precision);

// Throws Error when what the option (--out) names, which is to become a `kind` ("folder", "file"),
// is there already.
void require_new(const char* option, const std::filesystem::path& out, const char* kind);

// Makes it by `write`, alone: throws Error as require_new, and while another process makes it.
void write_new(const char* option, const std::filesystem::path& out, const char* kind,
               const std::function<void()>& write);

// Throws Error, naming the option, unless the folder is a run's.
void require_run(const char* option, const std::filesystem::path& folder);

// Throws UsageError where the path is no study's folder, but lies in one as its runs/ or
// study.json.
void require_no_part_of_study(const std::filesystem::path& path);

// Throws Error where the path is a folder in which `compare --dry-run` keeps its choice, with
// nothing trained.
void require_trained(const std::filesystem::path& path);

// Where a folder lies that comes with the program ("recipes", "models"): beside the build folder,
// where it is installed, or here.
std::optional<std::filesystem::path> find_shared(const std::string& folder);
// Its JSON files, such as recipes, sorted by name; none where there is no such folder.
std::vector<std::filesystem::path> json_files(const std::filesystem::path& folder);

// A model's place (pretrained/find_model.h): the path itself, or that of the model of this name
// which comes with the program.
std::filesystem::path find_model_or_name(const std::string& model);

// A recipe's file, or that of the recipe of this name which comes with the program. Throws
// UsageError where a name, which is no path, is neither.
std::filesystem::path find_recipe(const std::string& recipe);

// All of standard input.
std::string read_input();

// The files and folders' text as one stream of tokens, for windows of `context` tokens. Where the
// tokenizer puts tokens before a text, each document and each window begins with them.
EvaluationTokens tokens_of(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                           int64_t context);

}  // namespace attnres
