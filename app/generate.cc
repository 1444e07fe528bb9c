// The generate subcommand.
#include "attnres/infer/generate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/commands.h"
#include "app/options.h"
#include "app/token_ids.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/json.h"

namespace attnres {
namespace {

struct GenerateOptions {
  ModelOption model;
  MachineOptions machine;
  PrecisionOption precision;
  std::string prompt, prompt_file;
  std::optional<std::string> ids;
  bool truncate = false;
  GenerationSettings generation;
  bool json = false;
};

const char* name_of(StopReason reason) {
  switch (reason) {
    case StopReason::end_of_document:
      return "end_of_document";
    case StopReason::max_tokens:
      return "max_tokens";
    case StopReason::context:
      return "context";
  }
  return "";
}

std::string prompt_text(const GenerateOptions& options) {
  if (!options.prompt_file.empty()) return read_file(options.prompt_file);
  if (options.prompt != "-") return options.prompt;
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

// The prompt, or its end where the continuation needs the room.
std::vector<int32_t> fitted(std::vector<int32_t> prompt, const GenerationSettings& settings,
                            bool truncate) {
  const auto length = static_cast<int64_t>(prompt.size());
  if (!truncate) {
    require(length < settings.context,
            "the prompt has {}, which leaves no room for more: this model's context is {} tokens; "
            "shorten the prompt, or keep only its end with --truncate",
            counted(length, "token"), settings.context);
    return prompt;
  }
  const int64_t room = std::min(settings.max_tokens, settings.context / 2);
  const int64_t kept = std::min(length, settings.context - room);
  if (kept < length) {
    fmt::print(stderr, "attnres: of the prompt's {} tokens, only the last {} are used\n", length,
               kept);
    prompt.erase(prompt.begin(), prompt.end() - kept);
  }
  return prompt;
}

Generation run(const OpenedModel& opened, std::vector<int32_t> prompt,
               const GenerationSettings& settings, bool truncate,
               const std::function<void(int32_t)>& on_token) {
  const Generation generation =
      generate(*opened.model, fitted(std::move(prompt), settings, truncate), settings, on_token);
  if (generation.reason == StopReason::context) {
    fmt::print(stderr, "attnres: stopped at the model's context of {} tokens\n", settings.context);
  }
  return generation;
}

void show(const std::string& piece) {
  fmt::print("{}", piece);
  std::fflush(stdout);
}

void print_json(Json json, const Generation& generation) {
  json["tokens"] = generation.tokens;
  json["stop"] = name_of(generation.reason);
  fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void continue_text(const OpenedModel& opened, const GenerateOptions& options,
                   const std::string& prompt) {
  const auto tokenizer = opened.tokenizer();
  GenerationSettings settings = options.generation;
  settings.context = opened.context;
  settings.ends = {tokenizer->end_of_document()};
  settings.vocabulary = tokenizer->vocab_size();  // a model may embed more tokens than have a text
  std::vector<int32_t> ids = tokenizer->encode(prompt);
  // In training a document begins after the end of another.
  if (ids.empty()) ids.push_back(tokenizer->end_of_document());

  StreamDecoder decoder(*tokenizer);
  std::string text;
  const auto add = [&](const std::string& piece) {
    text += piece;
    if (!options.json && !piece.empty()) show(piece);
  };
  const Generation generation = run(opened, std::move(ids), settings, options.truncate,
                                    [&](int32_t id) { add(decoder.add(id)); });
  add(decoder.finish());
  if (options.json) return print_json({{"prompt", prompt}, {"text", text}}, generation);
  if (!text.ends_with('\n')) show("\n");
}

// Needs no tokenizer.
void continue_ids(const OpenedModel& opened, const GenerateOptions& options) {
  GenerationSettings settings = options.generation;
  settings.context = opened.context;
  settings.ends = model_document_ids(opened.folder).ends();
  std::vector<int32_t> prompt;
  try {
    prompt = parse_ids(*options.ids);
    require(!prompt.empty(), "expected token ids such as 5,17,3, got none");
    check_ids(*opened.model, prompt);
  } catch (const Error& e) {
    fail_usage("--ids: {}", e.what());
  }
  const char* separator = "";
  const Generation generation = run(opened, prompt, settings, options.truncate, [&](int32_t id) {
    if (!options.json) show(fmt::format("{}{}", separator, id));
    separator = ",";
  });
  if (options.json) return print_json({{"ids", prompt}}, generation);
  show("\n");
}

void run_generate(const GenerateOptions& options) {
  try {
    check(options.generation.sampling);
  } catch (const UsageError& e) {
    fail_usage("--{}", e.what());
  }
  options.machine.apply();
  const std::string prompt = prompt_text(options);
  const OpenedModel opened = open_model(options.model, options.precision);
  options.ids ? continue_ids(opened, options) : continue_text(opened, options, prompt);
}

}  // namespace

void add_generate_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "generate",
      "Continue a text. Prints the continuation as it comes, without the prompt.\n"
      "Stops at the end of a document, after --max-tokens, or when the model's context is full.");
  const auto options = std::make_shared<GenerateOptions>();
  GenerationSettings& generation = options->generation;
  options->model.add_to(*command);
  CLI::Option* prompt = command
                            ->add_option("--prompt", options->prompt,
                                         "the text to continue, as it is; a new document if empty, "
                                         "standard input if -")
                            ->type_name("TEXT");
  CLI::Option* file =
      command->add_option("--prompt-file", options->prompt_file, "a file with the text to continue")
          ->type_name("FILE")
          ->excludes(prompt);
  command
      ->add_option("--ids", options->ids,
                   "token ids to continue, separated by commas: prints ids, needs no tokenizer")
      ->type_name("IDS")
      ->excludes(prompt)
      ->excludes(file);
  command->add_flag("--truncate", options->truncate,
                    "of a prompt that leaves no room for --max-tokens in the model's context, keep "
                    "the end: half of the context at least");
  command->add_option("--max-tokens", generation.max_tokens, "most tokens to generate")
      ->type_name("N")
      ->check(whole_number(1))
      ->capture_default_str();
  command
      ->add_option("--temperature", generation.sampling.temperature,
                   "0 takes the most likely token; higher is more random")
      ->type_name("T")
      ->capture_default_str();
  command
      ->add_option("--top-k", generation.sampling.top_k, "only the K most likely tokens; 0 for all")
      ->type_name("K")
      ->check(whole_number(0))
      ->capture_default_str();
  command
      ->add_option("--top-p", generation.sampling.top_p,
                   "only the fewest most likely tokens that hold this probability")
      ->type_name("P")
      ->capture_default_str();
  command->add_option("--seed", generation.seed, "equal seeds give equal text")
      ->type_name("N")
      ->check(whole_number(0, UINT64_MAX))
      ->capture_default_str();
  command->add_flag("--json", options->json, "print JSON, when done");
  options->precision.add_to(*command);
  options->machine.add_to(*command);
  command->footer(
      "Examples:\n"
      "  attnres generate --model runs/tiny --prompt '#include <' --top-p 0.95\n"
      "  attnres generate --model runs/tiny --prompt 'int main' --temperature 0\n"
      "  attnres generate --model runs/tiny --prompt - --truncate < draft.txt");
  command->callback([options] { run_generate(*options); });
}

}  // namespace attnres
