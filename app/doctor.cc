// The doctor subcommand.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "app/commands.h"
#include "app/options.h"
#include "attnres/data/corpus.h"
#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/matmul/provider.h"
#include "attnres/plan/inference.h"
#include "attnres/support/build_info.h"
#include "attnres/support/compute_device.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/json.h"
#include "attnres/support/machine.h"
#include "attnres/support/program.h"
#include "attnres/support/progress.h"
#include "attnres/support/shell.h"
#include "attnres/train/estimate/estimate.h"

namespace attnres {
namespace {

namespace fs = std::filesystem;

constexpr double kHour = 3600;
constexpr double kLongStep = 3;       // seconds; one that takes longer is not timed
constexpr double kTimingSeconds = 5;  // for the steps of a recipe
constexpr int kMostTimed = 2;         // recipes
constexpr WeightFormat kUsualFormat = WeightFormat::q4_K;  // of files that people have
constexpr double kOffBy = 0.3;                             // what is only estimated

bool on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((fs::path(folder) / program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

struct Candidate {
  fs::path file;
  Recipe recipe;
  Estimate estimate;
  bool timed = false;
  StepTimes step;  // what it takes at least and at most, by all that is known

  double seconds(double of_step) const {
    Estimate cost = estimate;
    cost.seconds_per_step = of_step;
    return run_seconds(recipe.train, cost);
  }
  double seconds() const { return seconds(step.median); }
};

// The recipes, those with the most parameters first.
std::vector<Candidate> read_recipes(const fs::path& folder, const MachineSpeed& speed,
                                    ProgressLine& line) {
  std::vector<Candidate> all;
  for (const fs::path& file : json_files(folder)) {
    line.update(fmt::format("estimating {}", file.stem().string()));
    Candidate candidate;
    candidate.file = file;
    candidate.recipe = load_recipe(file, {});
    candidate.estimate = estimate(candidate.recipe, candidate.recipe.tokenizer.vocab_size, speed);
    const double step = candidate.estimate.seconds_per_step;
    candidate.step = {.least = (1 - kOffBy) * step, .median = step, .most = (1 + kOffBy) * step};
    all.push_back(std::move(candidate));
  }
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.estimate.parameters, b.file) > std::pair(b.estimate.parameters, a.file);
  });
  return all;
}

// What was estimated stays in the range: the machine may be busier at one moment than at another.
void time_candidate(Candidate& candidate, ProgressLine& line) {
  int steps = 0;
  const auto show = [&] {
    line.update(fmt::format("timing {}: {}", candidate.recipe.name, counted(steps++, "step")));
  };
  show();
  const double estimated = candidate.step.median;
  candidate.step =
      time_steps(candidate.recipe, candidate.recipe.tokenizer.vocab_size, kTimingSeconds, show);
  candidate.step.least = std::min(candidate.step.least, estimated);
  candidate.step.most = std::max(candidate.step.most, estimated);
  candidate.timed = true;
}

// The largest recipe that trains here in an hour. Real steps decide where they are short.
std::optional<Candidate> choose(std::vector<Candidate> recipes, ProgressLine& line) {
  const double available = static_cast<double>(available_memory());
  int timed = 0;
  for (Candidate& candidate : recipes) {
    // One that may do is worth timing.
    if (static_cast<double>(candidate.estimate.bytes) > available ||
        candidate.seconds(candidate.step.least) > kHour) {
      continue;
    }
    if (candidate.step.median < kLongStep && timed++ < kMostTimed) time_candidate(candidate, line);
    if (candidate.seconds() <= kHour) return candidate;
  }
  return std::nullopt;
}

// Null where there is no room for what is read.
Json weights_read_gb_per_s() {
  try {
    return measure_weights_read(kUsualFormat) / 1e9;
  } catch (const Error&) {
    return nullptr;
  }
}

std::optional<std::string> corpus_folder() {
  try {
    return default_corpus_paths().at(0).string();
  } catch (const Error&) {
    return std::nullopt;
  }
}

Json examine_speed(int threads) {
  Json speed = {{"threads", threads},
                {"copy_gb_per_s", measure_copy(threads)},
                {"matmul_gflop_per_s", measure_matmul(threads) / 1e9}};
  if (processor().bfloat16) {
    speed["bfloat16_matmul_gflop_per_s"] = measure_matmul(threads, at::kBFloat16) / 1e9;
  }
  return speed;
}

// Who computes a training step's products.
std::string products_by(at::ScalarType dtype) {
  return provider_name(provider_for(processor(), dtype, Product::output, {4096, 1024, 1024}),
                       dtype);
}

Json examine() {
  ProgressLine line;
  line.update("measuring how fast memory is copied and matrices are multiplied");
  const Machine machine = describe_machine();
  const int threads = at::get_num_threads();
  Json speed = Json::array({examine_speed(1)});
  if (threads > 1) speed.push_back(examine_speed(threads));
  const auto optional = [](const std::optional<std::string>& text) {
    return text ? Json(*text) : Json(nullptr);
  };
  const Gpus gpus = find_gpus();
  Json devices = {"cpu"}, of_gpus = Json::array();
  if (gpus.problem.empty()) devices.push_back("cuda");
  for (size_t i = 0; i < gpus.all.size(); ++i) {
    const DeviceMemory memory = device_memory({c10::kCUDA, static_cast<c10::DeviceIndex>(i)});
    of_gpus.push_back({{"name", gpus.all[i].name},
                       {"memory_bytes", memory.all},
                       {"available_bytes", memory.free}});
  }
  Json report = {
      {"machine",
       {{"cpu", machine.cpu},
        {"cores", machine.cores},
        {"instruction_sets", machine.instruction_sets},
        {"cache_bytes", machine.cache},
        {"memory_bytes", machine.memory},
        {"available_bytes", available_memory()},
        {"huge_pages", machine.huge_pages},
        {"weights_read_gb_per_s", weights_read_gb_per_s()},
        {"gpus", of_gpus},
        {"gpu_driver", gpus.driver.empty() ? Json(nullptr) : Json(gpus.driver)},
        {"gpu_problem", gpus.problem.empty() ? Json(nullptr) : Json(gpus.problem)},
        {"speed", speed}}},
      {"build",
       {{"version", program_version()},
        {"compiler", compiler_version()},
        {"torch", torch_version()},
        {"torch_instruction_set", at::get_cpu_capability()},
        {"kernel_instruction_sets", depth_attention_instruction_sets()},
        {"products",
         {{"float32", products_by(at::kFloat)},
          {"bfloat16", processor().bfloat16 ? Json(products_by(at::kBFloat16)) : Json(nullptr)}}},
        {"devices", devices},
        {"tokenizers", {"bytes", "sentencepiece", "bpe"}}}},
      {"default_corpus", optional(corpus_folder())},
      {"gnuplot", on_path("gnuplot")},
      {"next", nullptr}};

  const MachineSpeed at_full_speed = {
      .matmul = speed.back().at("matmul_gflop_per_s").get<double>() * 1e9,
      .copy = speed.back().at("copy_gb_per_s").get<double>() * 1e9};
  const auto folder = find_shared("recipes");
  const auto choice =
      folder ? choose(read_recipes(*folder, at_full_speed, line), line) : std::nullopt;
  if (choice) {
    report["next"] = {{"recipe", choice->file.string()},
                      {"parameters", choice->estimate.parameters},
                      {"seconds", choice->seconds()},
                      {"seconds_at_least", choice->seconds(choice->step.least)},
                      {"seconds_at_most", choice->seconds(choice->step.most)},
                      {"bytes", choice->estimate.bytes},
                      {"timed", choice->timed},
                      {"command", fmt::format("{} train --recipe {} --out runs/{}", program(),
                                              for_shell(choice->file.stem().string()),
                                              for_shell(choice->recipe.name))}};
  }
  return report;
}

std::string joined(const Json& texts) {
  std::string list;
  for (const Json& text : texts) list += (list.empty() ? "" : ", ") + text.get<std::string>();
  return list;
}

std::string bytes(const Json& number) {
  return format_bytes(number.get<double>());
}

// What is found in /proc and /sys alone may not be there.
std::string known(const std::string& text) {
  return text.empty() ? "unknown" : text;
}

void print_next(const Json& next) {
  if (next.is_null()) {
    fmt::print("\nNo recipe was found that trains here in an hour; see {} train --help.\n",
               program());
    return;
  }
  const auto duration = [&](const char* key) {
    return format_duration(next.at(key).get<double>());
  };
  fmt::print(
      "\nNext, the largest recipe that trains here in an hour ({} parameters, {}):\n  {}\n"
      "It takes about {}: {} to {}, {}.\n",
      format_count(next.at("parameters").get<double>()), bytes(next.at("bytes")),
      next.at("command").get<std::string>(), duration("seconds"), duration("seconds_at_least"),
      duration("seconds_at_most"),
      next.at("timed").get<bool>() ? "as the machine was more or less busy while steps were timed"
                                   : "by the speeds above");
}

void print(const Json& report) {
  const auto line = [](const char* what, const std::string& text) {
    fmt::print("  {:<14}{}\n", what, text);
  };
  const Json& machine = report.at("machine");
  fmt::print("This machine\n");
  line("processor", fmt::format("{}, {}", known(machine.at("cpu").get<std::string>()),
                                counted(machine.at("cores").get<int>(), "core")));
  line("instructions", known(joined(machine.at("instruction_sets"))));
  line("memory",
       fmt::format("{}, {} available; largest cache {}", bytes(machine.at("memory_bytes")),
                   bytes(machine.at("available_bytes")), bytes(machine.at("cache_bytes"))));
  line("huge pages", known(machine.at("huge_pages").get<std::string>()));
  for (const Json& gpu : machine.at("gpus")) {
    line("GPU",
         fmt::format("{}, {}, {} available, driver for CUDA {}", gpu.at("name").get<std::string>(),
                     bytes(gpu.at("memory_bytes")), bytes(gpu.at("available_bytes")),
                     machine.at("gpu_driver").get<std::string>()));
  }
  if (const Json& problem = machine.at("gpu_problem"); !problem.is_null()) {
    line("GPU", "none: " + problem.get<std::string>());
  }
  for (const Json& speed : machine.at("speed")) {
    const int threads = speed.at("threads").get<int>();
    const auto number = [&](const char* key) { return speed.at(key).get<double>(); };
    std::string text = fmt::format("copies {:.0f} GB/s, multiplies matrices at {:.0f} GFLOP/s",
                                   number("copy_gb_per_s"), number("matmul_gflop_per_s"));
    if (speed.contains("bfloat16_matmul_gflop_per_s")) {
      text += fmt::format(", in bfloat16 at {:.0f}", number("bfloat16_matmul_gflop_per_s"));
    }
    line(counted(threads, "thread").c_str(), text);
  }
  const Json& read = machine.at("weights_read_gb_per_s");
  line("4-bit weights",
       read.is_null()
           ? "not timed: there is no room for a temporary file"
           : fmt::format("read at {0:.0f} GB/s: a token that reads a GB takes {1:.0f} ms (plan "
                         "--model FILE)",
                         read.get<double>(), 1000 / read.get<double>()));

  const Json& build = report.at("build");
  fmt::print("\nThis program\n");
  line("version", fmt::format("{}, {}", build.at("version").get<std::string>(),
                              build.at("compiler").get<std::string>()));
  line("libtorch", fmt::format("{}, using {}", build.at("torch").get<std::string>(),
                               build.at("torch_instruction_set").get<std::string>()));
  line("kernels", joined(build.at("kernel_instruction_sets")) + "; the first is used");
  const Json& products = build.at("products");
  line("products",
       products.at("bfloat16").is_null()
           ? fmt::format("float32 by {}; no bfloat16", products.at("float32").get<std::string>())
           : fmt::format("float32 by {}, bfloat16 by {}", products.at("float32").get<std::string>(),
                         products.at("bfloat16").get<std::string>()));
  line("devices", joined(build.at("devices")));
  line("tokenizers", joined(build.at("tokenizers")));

  const Json &corpus = report.at("default_corpus"), &next = report.at("next");
  fmt::print("\nWhat it finds\n");
  line("text", corpus.is_null() ? "no compiler headers: give --data to train"
                                : corpus.get<std::string>() + " and more: train needs no --data");
  line("gnuplot", report.at("gnuplot").get<bool>()
                      ? "found"
                      : "not found: attnres report needs it (Debian: gnuplot-nox)");
  print_next(next);
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  CLI::App& command =
      *app.add_subcommand("doctor",
                          "Show what this machine can do, and what to run next. Takes half a "
                          "minute at most where the machine does nothing else.");
  const auto json = std::make_shared<bool>(false);
  command.add_flag("--json", *json, "print JSON");
  command.footer("Example:\n  attnres doctor");
  command.callback([json] {
    const Json report = examine();
    if (*json) {
      fmt::print("{}\n", report.dump(2));
    } else {
      print(report);
    }
  });
}

}  // namespace attnres
