// The generate subcommand.
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
#include "app/generate_options.h"
#include "app/token_ids.h"
#include "attnres/infer/stop_strings.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/json.h"

namespace attnres {
namespace {

const char* name_of(StopReason reason) {
  switch (reason) {
    case StopReason::end_of_document:
      return "end_of_document";
    case StopReason::max_tokens:
      return "max_tokens";
    case StopReason::context:
      return "context";
    case StopReason::stop_string:
      return "stop_string";
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
               const std::function<bool(int32_t)>& on_token) {
  try {
    check_logit_bias(settings.sampling, settings.vocabulary);
  } catch (const UsageError& e) {
    fail_usage("--{}", e.what());
  }
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

// The text that a generated token adds; none where only ids are known.
using TextOf = std::function<std::optional<std::string>(int32_t)>;

Json logprob_json(int32_t id, double logprob, const TextOf& text_of) {
  Json json = {{"id", id}, {"logprob", logprob}};
  if (const auto text = text_of(id)) json["text"] = *text;
  return json;
}

Json logprobs_json(const Generation& generation, const TextOf& text_of) {
  Json json = Json::array();
  for (size_t i = 0; i < generation.logprobs.size(); ++i) {
    const TokenLogprobs& logprobs = generation.logprobs[i];
    Json token = logprob_json(generation.tokens[i], logprobs.chosen, text_of);
    token["top"] = Json::array();
    for (const auto& [id, logprob] : logprobs.top) {
      token["top"].push_back(logprob_json(id, logprob, text_of));
    }
    json.push_back(token);
  }
  return json;
}

void print_json(Json json, const Generation& generation, const GenerateOptions& options,
                const TextOf& text_of) {
  json["tokens"] = generation.tokens;
  json["stop"] = name_of(generation.reason);
  if (options.generation.top_logprobs >= 0) json["logprobs"] = logprobs_json(generation, text_of);
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
  StopStrings stops(options.stop_texts);
  std::string text;
  const auto add = [&](const std::string& piece) {
    text += piece;
    if (!options.json && !piece.empty()) show(piece);
  };
  Generation generation = run(opened, std::move(ids), settings, options.truncate, [&](int32_t id) {
    add(stops.add(decoder.add(id)));
    return !stops.found();
  });
  add(stops.add(decoder.finish()));
  add(stops.finish());
  if (stops.found()) generation.reason = StopReason::stop_string;
  if (options.json) {
    return print_json({{"prompt", prompt}, {"text", text}}, generation, options, [&](int32_t id) {
      return id < tokenizer->vocab_size() ? tokenizer->token_text(id) : "";
    });
  }
  if (!text.ends_with('\n')) show("\n");
}

// Needs no tokenizer.
void continue_ids(const OpenedModel& opened, const GenerateOptions& options) {
  GenerationSettings settings = options.generation;
  settings.context = opened.context;
  settings.ends = model_document_ids(opened.folder).ends();
  settings.vocabulary = opened.model->vocab_size();
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
    return true;
  });
  if (options.json) {
    return print_json({{"ids", prompt}}, generation, options, [](int32_t) { return std::nullopt; });
  }
  show("\n");
}

void run_generate(GenerateOptions options) {
  options.finish();
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
      "Stops at the end of a document, before a --stop text, after --max-tokens, or when the "
      "model's context is full.");
  const auto options = std::make_shared<GenerateOptions>();
  options->add_to(*command);
  command->footer(
      "Examples:\n"
      "  attnres generate --model runs/tiny --prompt '#include <' --top-p 0.95\n"
      "  attnres generate --model runs/tiny --prompt 'int main' --temperature 0 --stop '}'\n"
      "  attnres generate --model runs/tiny --prompt - --truncate < draft.txt");
  command->callback([options] { run_generate(*options); });
}

}  // namespace attnres
