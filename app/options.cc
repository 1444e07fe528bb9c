#include "app/options.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <iterator>
#include <map>
#include <regex>
#include <system_error>

#include "attnres/data/corpus.h"
#include "attnres/model/merge_low_rank.h"
#include "attnres/ops/composed.h"
#include "attnres/ops/matmul/provider.h"
#include "attnres/parallel/mpi_communicator.h"
#include "attnres/pretrained/adapter.h"
#include "attnres/pretrained/find_model.h"
#include "attnres/study/quick_study.h"
#include "attnres/study/study_data.h"
#include "attnres/support/compute_device.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/machine.h"
#include "attnres/support/memory.h"
#include "attnres/support/nearest.h"
#include "attnres/train/run_folder/run_folder.h"

namespace attnres {

CLI::Validator whole_number(uint64_t least, uint64_t most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    uint64_t n = 0;
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data(), end, n);
    const bool is_whole = code == std::errc() && stop == end;
    if (is_whole && n >= least && n <= most) return "";
    // A limit that nobody reaches is named where it is reached.
    const bool is_beyond = code == std::errc::result_out_of_range || (is_whole && n > most);
    if (most >= INT64_MAX && !is_beyond) {
      return fmt::format("expected a whole number, {} or more, got {}", least, text);
    }
    return fmt::format("expected a whole number from {} to {}, got {}", least, most, text);
  };
  return {check, /*description=*/""};
}

CLI::Validator number(double least, double most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    double x = 0;
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data(), end, x);
    if (code == std::errc() && stop == end && x >= least && x <= most) return "";
    const std::string limits =
        std::isinf(most) ? "" : fmt::format(" from {:.9g} to {:.9g}", least, most);
    return fmt::format("expected a number{}, got {}", limits, text);
  };
  return {check, /*description=*/""};
}

CLI::Validator duration(double least, double most, char unit) {
  const auto in_seconds = [=](std::string& text) -> std::string {
    const std::map<char, double> units = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    double count = 0;
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data(), end, count);
    const bool is_number = code == std::errc() && stop == end;
    if (is_number && unit == '\0') {
      return fmt::format("expected a time with its unit, such as {0}h, {0}m or {0}s, got {0}",
                         text);
    }
    const auto found = units.find(is_number ? unit : stop + 1 == end ? *stop : '\0');
    if (code != std::errc() || found == units.end()) {
      return fmt::format("expected a time such as 2h, 90m or 45s, got {}", text);
    }
    const double seconds = count * found->second;
    if (!(seconds >= least && seconds <= most)) {
      return fmt::format("expected a time from {} to {}, got {}", format_duration(least),
                         format_duration(most), text);
    }
    text = fmt::format("{}", seconds);
    return "";
  };
  return {in_seconds, /*description=*/""};
}

CLI::Validator one_word_of(const std::vector<std::string>& words) {
  const auto check = [words](const std::string& text) -> std::string {
    if (std::find(words.begin(), words.end(), text) != words.end()) return "";
    return fmt::format("expected one of {}, got {}{}", fmt::join(words, ", "), text,
                       did_you_mean(text, words));
  };
  return {check, fmt::format("{{{}}}", fmt::join(words, ","))};
}

CLI::Validator without_blanks() {
  const auto trim = [](std::string& text) -> std::string {
    CLI::detail::trim(text);
    return "";
  };
  return {trim, /*description=*/""};
}

CLI::Validator file_path() {
  const auto trim = [](std::string& text) -> std::string {
    if (text.empty()) return "expected a path, got an empty one";
    std::filesystem::path path = text;
    const auto has_name = [&] { return path.has_filename() && path.filename() != "."; };
    while (!has_name() && path.has_parent_path() && path.parent_path() != path) {
      path = path.parent_path();
    }
    text = path.string();
    return "";
  };
  return {trim, /*description=*/""};
}

void group_options(CLI::App& command, const std::string& group,
                   const std::vector<std::string>& names) {
  for (const std::string& name : names) command.get_option(name)->group(group);
}

CLI::Option* add_device(CLI::App& command, std::string& device, const std::string& description) {
  const auto check = [](const std::string& name) -> std::string {
    static const std::regex known("cpu|cuda(:[0-9]{1,2})?");
    if (std::regex_match(name, known)) return "";
    return fmt::format("expected cpu, cuda or, of several GPUs, one as cuda:1, got {}", name);
  };
  return add_option(command, "--device NAME", device, description)
      ->check(CLI::Validator(check, "{cpu,cuda}"));
}

void require_out_beside(const std::filesystem::path& out, const std::vector<std::string>& data) {
  namespace fs = std::filesystem;
  for (const fs::path text : data) {
    if (!fs::is_directory(text)) continue;
    const fs::path inside = fs::weakly_canonical(out).lexically_relative(fs::canonical(text));
    require_usage(inside.empty() || *inside.begin() == "..",
                  "--out {}: lies in {}, where text is read; choose another --out", out.string(),
                  text.string());
  }
}

void MachineOptions::add_threads_to(CLI::App& command) {
  add_whole(command, "--threads N", threads, {1, 4096},
            "threads to compute with (default: one for each core)");
  group_options(command, kComputing, {"--threads"});
}

void MachineOptions::add_to(CLI::App& command) {
  add_threads_to(command);
  add_device(command, device, "where to compute: cpu, cuda or, of several GPUs, one as cuda:1")
      ->capture_default_str();
  group_options(command, kComputing, {"--device"});
}

void MachineOptions::apply() const {
  require_usage(
      launched_processes() == 1 || device == "cpu",
      "--device {}: several processes compute on CPUs; on a GPU there is one, without mpirun",
      device);
  set_compute_device(find_device(device));
  observe_composed([](const std::string& operation, c10::Device computes) {
    fmt::print(stderr, "note: {}: no kernel for {}, composed of PyTorch's operations\n", operation,
               computes.str());
  });
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
}

CLI::Option* ModelOption::add_to(CLI::App& command) {
  CLI::Option* model =
      add_path(command, "--model PATH", path,
               "a model directory, a run's folder (its best checkpoint), a GGUF file, an adapter, "
               "or the name of a model that comes with attnres, such as tiny-shakespeare");
  add_path(command, "--adapter DIR", adapter,
           "what was trained beside this model: an adapter of PEFT or of a run of this program");
  return model->required();
}

namespace {

void require_together(const Tokenizer& tokenizer, const ModelDirectory& directory) {
  require(tokenizer.vocab_size() <= directory.vocab_size(),
          "{}: the tokenizer has {} tokens, but the model only {}; they do not belong together",
          directory.path().string(), tokenizer.vocab_size(), directory.vocab_size());
}

}  // namespace

std::unique_ptr<Tokenizer> OpenedDirectory::tokenizer() const {
  auto tokenizer = directory.tokenizer();
  require_together(*tokenizer, directory);
  return tokenizer;
}

std::unique_ptr<Tokenizer> OpenedDirectory::tokenizer_if_read(std::string* why) const {
  auto tokenizer = directory.tokenizer_if_read(why);
  if (tokenizer != nullptr) require_together(*tokenizer, directory);
  return tokenizer;
}

std::unique_ptr<Tokenizer> OpenedDirectory::tokenizer_or_ids() const {
  auto tokenizer = tokenizer_if_read();
  return tokenizer != nullptr ? std::move(tokenizer) : directory.ids();
}

void PrecisionOption::add_to(CLI::App& command) {
  add_option(command, "--precision NAME", name,
             "numbers of activations and matrix products: float32, or bfloat16 where the processor "
             "has it")
      ->check(one_word_of({kFloat32Precision, kBfloat16Precision}))
      ->capture_default_str();
  group_options(command, kComputing, {"--precision"});
  add_weights_to(command);
}

void PrecisionOption::add_weights_to(CLI::App& command) {
  add_option(
      command, "--weights FORMAT", weights,
      "how weights are kept in memory: f32, f16, bf16, or in the blocks of GGUF's q8_0, q4_0, "
      "q4_1, q5_0, q5_1, q4_K, q5_K or q6_K (default: as a GGUF file has each, f32 of a model "
      "directory)")
      ->check(one_word_of(weight_format_names()));
  command.add_flag("--mlock", lock,
                   "keep the weights in memory: read them at the start, and never let the system "
                   "drop their pages (ulimit -l says how much it allows)");
  group_options(command, kComputing, {"--weights", "--mlock"});
}

void GenerationConfigOption::add_to(CLI::App& command) {
  add_option(command, "--generation-config SOURCE", source,
             "how to sample where nothing else says: model, as the model's generation_config.json "
             "does; none, by the defaults, without a look at that file")
      ->check(one_word_of({"model", "none"}))
      ->capture_default_str();
}

Precision PrecisionOption::get(const ModelDirectory& model) const {
  if (name == kBfloat16Precision && compute_device().is_cpu())
    require_bfloat16_products("--precision");
  Precision precision = parse_precision(name, "--precision");
  precision.weights = weights.empty() ? model.weight_formats()
                                      : WeightFormats(parse_weight_format(weights, "--weights"));
  return precision;
}

void print_notes(const ModelDirectory& directory) {
  for (const std::string& note : directory.notes()) fmt::print(stderr, "note: {}\n", note);
}

ModelDirectory ModelOption::open() const {
  const std::filesystem::path model = find_model_or_name(path);
  if (adapter.empty()) return ModelDirectory(model);
  const std::filesystem::path beside = find_model(adapter);
  require(is_adapter_folder(beside), "--adapter {}: is no adapter, but a model of its own",
          adapter);
  return {model, beside};
}

namespace {

std::unique_ptr<Transformer> load_to_compute(const ModelDirectory& directory,
                                             const PrecisionOption& precision,
                                             const TensorGroup* group) {
  require_usage(!precision.lock || compute_device().is_cpu(),
                "--mlock: the weights lie on the device; leave it out");
  auto model = directory.load(precision.get(directory), /*sites=*/{}, group);
  if (!precision.lock) return model;
  const double memory = static_cast<double>(describe_machine().memory);
  double bytes = 0;
  for (const Parameter& p : model->parameters().all()) {
    bytes += static_cast<double>(p.held().nbytes());
  }
  require(bytes < memory, "--mlock: {} of weights are more than the {} of memory; leave it out",
          format_bytes(bytes), format_bytes(memory));
  try {
    for (const Parameter& p : model->parameters().all()) {
      lock_in_memory(p.held().const_data_ptr(), p.held().nbytes());
    }
  } catch (const Error& e) {
    fail("--mlock: {}: allow more, or leave it out", e.what());
  }
  return model;
}

}  // namespace

OpenedModel open_model(const ModelOption& option) {
  ModelDirectory directory = option.open();
  print_notes(directory);
  auto model = directory.load();
  if (model->config().lora.rank > 0) model = merge_low_rank(*model);
  const int64_t context = directory.context();
  return {{std::move(directory), context}, std::move(model)};
}

OpenedModel open_stored_model(const ModelOption& option) {
  ModelDirectory directory = option.open();
  print_notes(directory);
  auto model = directory.load({at::kFloat, at::kFloat, directory.weight_formats()});
  const int64_t context = directory.context();
  return {{std::move(directory), context}, std::move(model)};
}

OpenedInference open_model(const ModelOption& option, const PrecisionOption& precision,
                           const MakeInferenceModel& make) {
  ModelDirectory directory = option.open();
  print_notes(directory);
  auto model =
      make([&](const TensorGroup* group) { return load_to_compute(directory, precision, group); });
  const int64_t context = directory.context();
  return {{std::move(directory), context}, std::move(model)};
}

LoadTransformer part_of_model(const ModelOption& option, const PrecisionOption& precision) {
  return [&](const TensorGroup* group) {
    const ModelDirectory directory = option.open();
    return load_to_compute(directory, precision, group);
  };
}

void require_new(const char* option, const std::filesystem::path& out, const char* kind) {
  require(!path_exists(out), "{} {}: is there already; name a {} that is not", option, out.string(),
          kind);
}

void write_new(const char* option, const std::filesystem::path& out, const char* kind,
               const std::function<void()>& write) {
  if (out.has_parent_path()) make_folder(out.parent_path());
  const PathLock lock(out);
  require_new(option, out, kind);
  write();
}

void require_run(const char* option, const std::filesystem::path& folder) {
  require(!is_study_folder(folder), "{} {}: holds a study; name one of its runs, {}/NAME", option,
          folder.string(), (folder / "runs").string());
  require(path_exists(RunPaths{folder}.run_json()), "{} {}: holds no run (no run.json)", option,
          folder.string());
}

void require_no_part_of_study(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const bool is_part = path.filename() == "runs" || path.filename() == "study.json";
  require_usage(!is_part || !is_study_folder(folder),
                "{}: is a part of a study; did you mean its folder, {}?", path.string(),
                folder.string());
}

void require_trained(const std::filesystem::path& path) {
  const bool has_begun = path_exists(path / "study.json") || path_exists(path / "run.json");
  require(has_begun || !path_exists(path / kComparisonFile),
          "{}: nothing is trained here yet: it has what compare --dry-run chose, and the same "
          "compare command without --dry-run trains it",
          path.string());
}

std::optional<std::filesystem::path> find_shared(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none).parent_path();
  for (const fs::path& place :
       {program / ".." / folder, program / "../share/attnres" / folder, fs::path(folder)}) {
    if (fs::is_directory(place, none)) return fs::proximate(place);
  }
  return std::nullopt;
}

std::vector<std::filesystem::path> json_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::is_directory(folder)) return files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

namespace {

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::filesystem::path find_model_or_name(const std::string& model) {
  if (!path_exists(model) && model.find('/') == std::string::npos) {
    const auto folder = find_shared("models");
    if (folder && path_exists(*folder / model)) return find_model(*folder / model);
    const std::string near = folder ? did_you_mean(model, names_in(*folder)) : "";
    require(near.empty(), "{}: no such model directory{}", model, near);
  }
  return find_model(model);
}

std::filesystem::path find_recipe(const std::string& recipe) {
  namespace fs = std::filesystem;
  if (path_exists(recipe) || recipe.find('/') != std::string::npos || recipe.ends_with(".json")) {
    return recipe;
  }
  const auto folder = find_shared("recipes");
  require_usage(folder.has_value(),
                "--recipe {}: no such file, and the recipes that come with attnres are not beside "
                "the program, and not in recipes; give a recipe's file",
                one_line(recipe));
  std::vector<std::string> names;
  for (const fs::path& file : json_files(*folder)) names.push_back(file.stem());
  const auto found = std::find(names.begin(), names.end(), recipe);
  require_usage(found != names.end(),
                "--recipe {}: no such file, and no recipe of that name is in {}, which has {}{}",
                one_line(recipe), folder->string(), fmt::to_string(fmt::join(names, ", ")),
                did_you_mean(recipe, names));
  return *folder / (recipe + ".json");
}

std::string read_input() {
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

EvaluationTokens tokens_of(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                           int64_t context) {
  const Corpus corpus = read_corpus({paths.begin(), paths.end()});
  TokenStream stream = tokenize(passages_of(corpus), tokenizer);
  return in_begun_windows(std::move(stream.tokens), stream.ends, tokenizer.frame().before, context);
}

}  // namespace attnres
