// The generate subcommand.
#include "attnres/infer/generate.h"

#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/options.h"
#include "attnres/support/error.h"
#include "attnres/support/json.h"

namespace attnres {
namespace {

struct GenerateOptions {
  ModelOption model;
  MachineOptions machine;
  std::string prompt;
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

void run_generate(const GenerateOptions& options) {
  check(options.generation.sampling);
  options.machine.apply();
  const OpenedModel opened = open_model(options.model);
  const auto tokenizer = opened.tokenizer();
  GenerationSettings settings = options.generation;
  settings.context = opened.context;
  settings.end_of_document = tokenizer->end_of_document();
  std::vector<int32_t> prompt = tokenizer->encode(options.prompt);
  // In training a document begins after the end of another.
  if (prompt.empty()) prompt.push_back(tokenizer->end_of_document());

  StreamDecoder decoder(*tokenizer);
  std::string text;
  const auto show = [&](const std::string& piece) {
    text += piece;
    if (options.json || piece.empty()) return;
    fmt::print("{}", piece);
    std::fflush(stdout);
  };
  const Generation generation =
      generate(*opened.model, prompt, settings, [&](int32_t id) { show(decoder.add(id)); });
  show(decoder.finish());

  if (options.json) {
    fmt::print("{}\n", Json{{"prompt", options.prompt},
                            {"text", text},
                            {"tokens", generation.tokens},
                            {"stop", name_of(generation.reason)}}
                           .dump(-1, ' ', false, Json::error_handler_t::replace));
  } else if (!text.ends_with('\n')) {
    fmt::print("\n");
  }
  if (generation.reason == StopReason::context) {
    fmt::print(stderr, "attnres: stopped at the model's context of {} tokens\n", settings.context);
  }
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
  command->add_option("--prompt", options->prompt, "the text to continue; a new document if empty")
      ->type_name("TEXT");
  command->add_option("--max-tokens", generation.max_tokens, "most tokens to generate")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, INT64_MAX).description(""))
      ->capture_default_str();
  command
      ->add_option("--temperature", generation.sampling.temperature,
                   "0 takes the most likely token; higher is more random")
      ->type_name("T")
      ->capture_default_str();
  command
      ->add_option("--top-k", generation.sampling.top_k, "only the K most likely tokens; 0 for all")
      ->type_name("K")
      ->capture_default_str();
  command
      ->add_option("--top-p", generation.sampling.top_p,
                   "only the fewest most likely tokens that hold this probability")
      ->type_name("P")
      ->capture_default_str();
  command->add_option("--seed", generation.seed, "equal seeds give equal text")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber.description(""))
      ->capture_default_str();
  command->add_flag("--json", options->json, "print JSON, when done");
  options->machine.add_to(*command);
  command->footer(
      "Examples:\n"
      "  attnres generate --model runs/tiny --prompt '#include <' --temperature 0.8 --top-p 0.95\n"
      "  attnres generate --model runs/tiny --prompt 'int main' --temperature 0 --max-tokens 50");
  command->callback([options] { run_generate(*options); });
}

}  // namespace attnres
