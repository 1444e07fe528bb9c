#include "app/generate_options.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "app/token_ids.h"
#include "attnres/infer/stop_strings.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

template <class Number>
bool is_number(const char* begin, const char* end, Number* number) {
  const auto [stop, code] = std::from_chars(begin, end, *number);
  return code == std::errc() && stop == end;
}

void add_bias(const std::string& text, std::map<int32_t, double>* biases) {
  const size_t equals = std::min(text.find('='), text.size());
  const char* middle = text.data() + equals;
  const char* end = text.data() + text.size();
  int32_t id = 0;
  double bias = 0;
  require_usage(
      middle != end && is_number(text.data(), middle, &id) && is_number(middle + 1, end, &bias),
      "logit-bias: expected a token id and a number, such as 42=-1.5, got {}", text);
  require_usage(biases->emplace(id, bias).second, "logit-bias: token {} is there twice", id);
}

std::vector<int32_t> read_ids(const std::string& text) {
  try {
    std::vector<int32_t> ids = parse_ids(text);
    require(!ids.empty(), "expected token ids such as 5,17,3, got none");
    return ids;
  } catch (const Error& e) {
    fail_usage("ids: {}", e.what());
  }
}

void add_sampling(CLI::App& command, SamplingSettings& sampling) {
  command
      .add_option("--temperature", sampling.temperature,
                  "0 takes the most likely token; higher is more random")
      ->type_name("T")
      ->check(number())
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "only the K most likely tokens; 0 for all")
      ->type_name("K")
      ->check(whole_number(0))
      ->capture_default_str();
  command
      .add_option("--top-p", sampling.top_p,
                  "only the fewest most likely tokens that hold this probability")
      ->type_name("P")
      ->check(number())
      ->capture_default_str();
  command
      .add_option("--min-p", sampling.min_p,
                  "only tokens at least this times as likely as the likeliest; 0 for all")
      ->type_name("P")
      ->check(number())
      ->capture_default_str();
  add_number(command, "--seed", sampling.seed, whole_number(0, UINT64_MAX),
             "equal seeds give equal text")
      ->capture_default_str();
}

void add_penalties(CLI::App& command, SamplingSettings& sampling) {
  command
      .add_option("--repetition-penalty", sampling.repetition_penalty,
                  "makes tokens of the prompt and the continuation less likely above 1: divides "
                  "positive logits, multiplies negative ones")
      ->type_name("X")
      ->check(number())
      ->capture_default_str();
  command
      .add_option("--presence-penalty", sampling.presence_penalty,
                  "taken from the logit of every token of the continuation: -2 to 2")
      ->type_name("X")
      ->check(number())
      ->capture_default_str();
  command
      .add_option("--frequency-penalty", sampling.frequency_penalty,
                  "taken from it for each time that the token came: -2 to 2")
      ->type_name("X")
      ->check(number())
      ->capture_default_str();
}

// An option that is given once for each value.
CLI::Option* repeated(CLI::Option* option) {
  return option->allow_extra_args(false);
}

}  // namespace

void GenerateOptions::add_to(CLI::App& command) {
  model.add_to(command);
  CLI::Option* prompt_option =
      command
          .add_option(
              "--prompt", prompt,
              "the text to continue, as it is; a new document if empty, standard input if -")
          ->type_name("TEXT");
  CLI::Option* file_option =
      command.add_option("--prompt-file", prompt_file, "a file with the text to continue")
          ->type_name("FILE")
          ->excludes(prompt_option);
  CLI::Option* ids_option =
      command
          .add_option("--ids", ids_text,
                      "token ids to continue, separated by commas: prints ids, needs no tokenizer")
          ->type_name("IDS")
          ->excludes(prompt_option)
          ->excludes(file_option);
  add_prompts(command, {prompt_option, file_option, ids_option});
  command.add_flag("--truncate", truncate,
                   "of a prompt that leaves no room for --max-tokens in the model's context, keep "
                   "the end: half of the context at least");
  add_number(command, "--max-tokens", generation.max_tokens, whole_number(1),
             "most tokens to generate")
      ->capture_default_str();
  repeated(
      command.add_option("--stop", stop_texts, "stop before this text; may be given several times"))
      ->type_name("TEXT")
      ->excludes(ids_option);
  add_sampling(command, generation.sampling);
  add_penalties(command, generation.sampling);
  repeated(command.add_option("--logit-bias", biases,
                              "add a number to the logit of a token, -100 for never this token; "
                              "may be given several times"))
      ->type_name("ID=NUMBER");
  command.add_flag("--json", json, "print JSON, when done");
  add_number(command, "--logprobs", generation.top_logprobs, whole_number(0),
             "with --json or --prompts, the model's log-probability of each token and of the N "
             "likeliest in its place");
  precision.add_to(command);
  machine.add_to(command);
}

void GenerateOptions::add_prompts(CLI::App& command, const std::vector<CLI::Option*>& others) {
  CLI::Option* prompts_option =
      command
          .add_option(
              "--prompts", prompts,
              "many prompts: a file with a line of JSON for each, a text, or an object with a "
              "\"prompt\" or \"ids\", whose other fields are kept; standard input if -")
          ->type_name("FILE");
  CLI::Option* out_option = add_path(command, "--out", out, "FILE",
                                     "with --prompts, the results, a line of JSON for each prompt; "
                                     "the same command goes on where it was interrupted");
  prompts_option->needs(out_option);
  out_option->needs(prompts_option);
  add_number(command, "--sequences", sequences, whole_number(1, 4096),
             "with --prompts, how many are continued at once")
      ->needs(prompts_option)
      ->capture_default_str();
  command
      .add_flag("--deterministic", deterministic,
                "with --prompts, make no bit of a result depend on which others are computed "
                "beside it: takes longer")
      ->needs(prompts_option);
  CLI::Option* chat_option =
      command
          .add_flag("--chat", chat,
                    "a conversation in the terminal: each line is a message, /new begins another "
                    "conversation, /help says what there is, the end of input (Ctrl-D) ends")
          ->excludes(prompts_option);
  command.add_option("--system", system, "with --chat, a text that the conversation begins with")
      ->type_name("TEXT")
      ->needs(chat_option);
  for (CLI::Option* other : others) {
    prompts_option->excludes(other);
    chat_option->excludes(other);
  }
}

void GenerateOptions::finish() {
  try {
    for (const std::string& text : biases) add_bias(text, &generation.sampling.logit_bias);
    if (ids_text) ids = read_ids(*ids_text);
    check(generation.sampling);
    const StopStrings checked(stop_texts);
    require_usage(generation.top_logprobs < 0 || json || !prompts.empty(),
                  "logprobs: they are shown with --json and --prompts only; add one of them");
  } catch (const UsageError& e) {
    fail_usage("--{}", e.what());
  }
}

GenerationSettings settings_for(GenerationSettings settings, const OpenedInference& opened,
                                const Tokenizer* tokenizer) {
  settings.ends = opened.directory.ends(tokenizer);
  if (tokenizer != nullptr) settings.vocabulary = tokenizer->vocab_size();
  try {
    check_logit_bias(settings.sampling,
                     tokenizer != nullptr ? settings.vocabulary : opened.directory.vocab_size());
  } catch (const UsageError& e) {
    fail_usage("--{}", e.what());
  }
  return settings;
}

std::vector<int32_t> fitted_prompt(std::vector<int32_t> prompt, int64_t context,
                                   const GenerateOptions& options) {
  const auto length = static_cast<int64_t>(prompt.size());
  if (!options.truncate) {
    require(length < context,
            "the prompt has {}, which leaves no room for more: this model's context is {} tokens; "
            "shorten the prompt, or keep only its end with --truncate",
            counted(length, "token"), context);
    return prompt;
  }
  const int64_t room = std::min(options.generation.max_tokens, context / 2);
  const int64_t kept = std::min(length, context - room);
  if (kept < length) {
    fmt::print(stderr, "attnres: of the prompt's {} tokens, only the last {} are used\n", length,
               kept);
    prompt.erase(prompt.begin(), prompt.end() - kept);
  }
  return prompt;
}

}  // namespace attnres
