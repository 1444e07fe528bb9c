// The generate subcommand.
#include <fmt/core.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/generate_options.h"
#include "app/generation_json.h"
#include "app/output.h"
#include "app/processes.h"
#include "attnres/infer/score.h"
#include "attnres/infer/text_stream.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"

namespace attnres {
namespace {

std::string prompt_text(const GenerateOptions& options) {
  if (!options.prompt_file.empty()) return read_file(options.prompt_file);
  return options.prompt == "-" ? read_input() : options.prompt;
}

Generation run(const OpenedInference& opened, const std::vector<int32_t>& prompt,
               const GenerationSettings& settings, const std::function<bool(int32_t)>& on_token) {
  const Generation generation = generate(*opened.model, prompt, opened.context, settings, on_token);
  if (generation.reason == StopReason::context) {
    fmt::print(stderr, "attnres: stopped at the model's context of {} tokens\n", opened.context);
  }
  return generation;
}

void show(const std::string& piece) {
  fmt::print("{}", piece);
  flush_output();
}

void continue_text(const OpenedInference& opened, const GenerateOptions& options,
                   const std::string& prompt) {
  const auto tokenizer = opened.tokenizer();
  TextStream stream(*tokenizer, options.stop_texts, /*reply=*/nullptr,
                    options.generation.min_tokens);
  std::string text;
  const auto add = [&](const std::string& piece) {
    text += piece;
    if (!options.json && !piece.empty()) show(piece);
  };
  const auto on_token = [&](int32_t id) {
    add(stream.add(id));
    return !stream.stopped();
  };
  const std::vector<int32_t> ids = fitted_prompt(
      prompt_ids(prompt, *tokenizer), tokenizer->frame().before, opened.context, options);
  Generation generation =
      run(opened, ids, settings_for(options, opened, tokenizer.get()), on_token);
  add(stream.finish());
  if (stream.stopped()) generation.reason = StopReason::stop_string;
  if (options.json) {
    Json json = {{"prompt", prompt}, {"text", text}};
    json.update(generation_json(generation, tokenizer.get()));
    return fmt::print("{}\n", one_line_of(json));
  }
  if (!text.ends_with('\n')) show("\n");
}

// Needs no tokenizer.
void continue_ids(const OpenedInference& opened, const GenerateOptions& options) {
  const std::vector<int32_t>& prompt = *options.ids;
  const GenerationSettings settings = settings_for(options, opened, nullptr);
  try {
    check_ids(opened.model->transformer(), prompt);
  } catch (const Error& e) {
    fail_usage("--ids: {}", e.what());
  }
  const char* separator = "";
  const auto on_token = [&](int32_t id) {
    if (!options.json) show(fmt::format("{}{}", separator, id));
    separator = ",";
    return true;
  };
  const Generation generation =
      run(opened, fitted_prompt(prompt, {}, opened.context, options), settings, on_token);
  if (options.json) {
    Json json = {{"ids", prompt}};
    json.update(generation_json(generation, nullptr));
    return fmt::print("{}\n", one_line_of(json));
  }
  show("\n");
}

void generate_here(GenerateOptions options, const MakeInferenceModel& make) {
  options.finish();
  if (!options.prompts.empty()) return generate_prompts(options, make);
  if (options.chat) return chat(options, make);
  const std::string prompt = prompt_text(options);
  const OpenedInference opened = open_model(options.model, options.precision, make);
  options.ids ? continue_ids(opened, options) : continue_text(opened, options, prompt);
}

void run_generate(const CLI::App& command, const GenerateOptions& options) {
  run_in_group(command, options.machine, part_of_model(options.model, options.precision),
               [&](const MakeInferenceModel& make) { generate_here(options, make); });
}

}  // namespace

void add_generate_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("generate",
                                          "Continue a text, many texts at once, or a conversation. "
                                          "Prints the continuation as it comes, "
                                          "without the prompt. Stops at the end of a document, "
                                          "before a --stop text, after --max-tokens, "
                                          "or when the model's context is full.");
  const auto options = std::make_shared<GenerateOptions>();
  options->add_to(command);
  command.footer(
      "Several processes share a model's layers where mpirun or srun starts them:\n"
      "docs/parallel.md.\n\n"
      "Examples:\n"
      "  attnres generate --model runs/tiny --prompt '#include <' --top-p 0.95\n"
      "  attnres generate --model runs/tiny --prompt 'int main' --temperature 0 --stop '}'\n"
      "  attnres generate --model runs/tiny --prompt - --truncate < draft.txt\n"
      "  attnres generate --model runs/tiny --prompt 'Name:' --regex ' [A-Z][a-z]{1,20}'\n"
      "  attnres generate --model runs/tiny --prompts prompts.jsonl --out texts.jsonl\n"
      "  attnres generate --model runs/tiny --chat\n"
      "  mpirun -n 2 attnres generate --model runs/tiny \\\n"
      "    --prompt 'int main'");
  command.callback([&command, options] { run_generate(command, *options); });
}

}  // namespace attnres
