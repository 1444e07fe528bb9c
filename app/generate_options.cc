#include "app/generate_options.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>
#include <utility>

#include "app/token_ids.h"
#include "attnres/grammar/answer_grammars.h"
#include "attnres/infer/sampling_defaults.h"
#include "attnres/infer/stop_strings.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
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
  const auto add = [&](const char* name, double& value, const char* description) {
    add_option(command, name, value, description)->check(number())->capture_default_str();
  };
  add("--temperature T", sampling.temperature,
      "higher is more random; 0 takes the most likely token");
  add_whole(command, "--top-k K", sampling.top_k, {0},
            "take only the K most likely tokens; 0 for all")
      ->capture_default_str();
  add("--top-p P", sampling.top_p,
      "take only the fewest most likely tokens that hold this probability");
  add("--min-p P", sampling.min_p,
      "take only tokens that are at least P times as likely as the likeliest; 0 for all");
  add_whole(command, "--seed N", sampling.seed, {0, UINT64_MAX}, "equal seeds give equal text")
      ->capture_default_str();
  add("--repetition-penalty X", sampling.repetition_penalty,
      "above 1, make tokens of the prompt and the continuation less likely: divides positive "
      "logits, multiplies negative ones");
  add("--presence-penalty X", sampling.presence_penalty,
      "take X, -2 to 2, from the logit of every token of the continuation");
  add("--frequency-penalty X", sampling.frequency_penalty,
      "take X, -2 to 2, from the logit of a token for each time that it came");
}

// What a model's generation_config.json may say in their place, under these keys.
constexpr std::pair<const char*, const char*> kModelsOwn[] = {
    {"--temperature", "temperature"},
    {"--top-k", "top_k"},
    {"--top-p", "top_p"},
    {"--min-p", "min_p"},
    {"--repetition-penalty", "repetition_penalty"}};

// What the model says of sampling and the options do not.
SamplingDefaults models_own(const GenerateOptions& options, const ModelDirectory& model) {
  if (!options.generation_config.is_read()) return {};
  std::set<std::string> given;
  for (const auto& [name, key] : kModelsOwn) {
    if (!options.sampling_options.at(name)->empty()) given.insert(key);
  }
  return read_sampling_defaults(model.base(), given);
}

// An option that is given once for each value.
CLI::Option* repeated(CLI::Option* option) {
  return option->allow_extra_args(false);
}

}  // namespace

void GenerateOptions::add_to(CLI::App& command) {
  model.add_to(command);
  CLI::Option* prompt_option =
      add_option(command, "--prompt TEXT", prompt,
                 "the text to continue, as it is; a new document if empty, standard input if -");
  CLI::Option* file_option =
      add_option(command, "--prompt-file FILE", prompt_file, "a file with the text to continue")
          ->excludes(prompt_option);
  CLI::Option* ids_option =
      add_option(command, "--ids IDS", ids_text,
                 "token ids to continue, separated by commas; prints ids, needs no tokenizer")
          ->excludes(prompt_option)
          ->excludes(file_option);
  add_prompts(command, {prompt_option, file_option, ids_option});
  command.add_flag("--truncate", truncate,
                   "keep only the end of a prompt that leaves no room for --max-tokens in the "
                   "model's context, half of the context at least");
  add_whole(command, "--max-tokens N", generation.max_tokens, {1}, "the most tokens to generate")
      ->capture_default_str();
  add_whole(command, "--min-tokens N", generation.min_tokens, {0},
            "the fewest, before neither the model's end nor --stop ends the text")
      ->capture_default_str();
  repeated(add_option(command, "--stop TEXT", stop_texts,
                      "stop before this text; may be given several times"))
      ->excludes(ids_option);
  add_answer(command, ids_option);
  add_sampling(command, generation.sampling);
  for (const auto& [name, key] : kModelsOwn) sampling_options[name] = command.get_option(name);
  generation_config.add_to(command);
  repeated(add_option(command, "--logit-bias ID=NUMBER", biases,
                      "add a number to the logit of a token, -100 for never; may be given "
                      "several times"));
  command.add_flag("--json", json, "print JSON, when all is done");
  add_whole(command, "--logprobs N", generation.top_logprobs, {0},
            "with --json or --prompts, add the model's log-probability of each token and of the N "
            "likeliest in its place");
  precision.add_to(command);
  machine.add_to(command);
  group_options(command, "Many prompts", {"--prompts", "--out", "--sequences", "--deterministic"});
  group_options(command, "A form", {"--json-schema", "--grammar", "--regex"});
  group_options(command, "A conversation",
                {"--chat", "--system", "--template-argument", "--tools"});
  group_options(
      command, "Sampling",
      {"--temperature", "--top-k", "--top-p", "--min-p", "--seed", "--repetition-penalty",
       "--presence-penalty", "--frequency-penalty", "--logit-bias", "--generation-config"});
}

void GenerateOptions::add_prompts(CLI::App& command, const std::vector<CLI::Option*>& others) {
  CLI::Option* prompts_option =
      add_option(command, "--prompts FILE", prompts,
                 "a file with a line of JSON for each prompt, a text, or an object with a "
                 "\"prompt\" or \"ids\", whose other fields are kept; standard input if -");
  CLI::Option* out_option = add_path(command, "--out FILE", out,
                                     "write a line of JSON for each prompt; the same command goes "
                                     "on where it was interrupted");
  prompts_option->needs(out_option);
  out_option->needs(prompts_option);
  add_whole(command, "--sequences N", sequences, {1, 4096},
            "how many prompts are continued at once")
      ->needs(prompts_option)
      ->capture_default_str();
  command
      .add_flag("--deterministic", deterministic,
                "make no bit of a result depend on which others are computed beside it; takes "
                "longer")
      ->needs(prompts_option);
  CLI::Option* chat_option =
      command
          .add_flag("--chat", chat,
                    "talk in the terminal: each line is a message, /new begins another "
                    "conversation, /help says what there is, Ctrl-D ends")
          ->excludes(prompts_option);
  add_option(command, "--system TEXT", system, "a text that the conversation begins with")
      ->needs(chat_option);
  add_option(command, "--tools FILE", tools,
             "what the model may call, as OpenAI's API has it in JSON; results are asked for")
      ->needs(chat_option);
  repeated(add_option(command, "--template-argument NAME=VALUE", template_arguments,
                      "what the model's chat template is to find under a name, as "
                      "enable_thinking=false: JSON, or else a text; may be given several times"))
      ->needs(chat_option);
  for (CLI::Option* other : others) {
    prompts_option->excludes(other);
    chat_option->excludes(other);
  }
}

void GenerateOptions::add_answer(CLI::App& command, CLI::Option* ids_option) {
  const std::vector<CLI::Option*> forms = {
      add_option(command, "--json-schema SCHEMA", json_schema,
                 "generate JSON that a schema describes: the schema itself, or a file with it"),
      add_option(
          command, "--grammar GRAMMAR", grammar,
          "generate what the rule \"root\" of a grammar makes: the grammar itself, with ::=, "
          "or a file with it"),
      add_option(command, "--regex EXPRESSION", regex,
                 "generate a text that a regular expression matches as a whole")};
  for (CLI::Option* form : forms) {
    for (CLI::Option* other : forms) {
      if (form != other) form->excludes(other);
    }
    form->excludes(ids_option);
  }
}

void GenerateOptions::read_answer() {
  using Kind = AnswerGrammar::Kind;
  const bool has_schema = json_schema.find('{') != std::string::npos;
  const bool has_grammar = grammar.find("::=") != std::string::npos;
  if (!json_schema.empty()) {
    answer = {.kind = Kind::json_schema, .text = has_schema ? json_schema : read_file(json_schema)};
  } else if (!grammar.empty()) {
    answer = {.kind = Kind::ebnf, .text = has_grammar ? grammar : read_file(grammar)};
  } else if (!regex.empty()) {
    answer = {.kind = Kind::regex, .text = regex};
  }
}

void GenerateOptions::finish() {
  read_answer();
  require_usage(generation.min_tokens <= generation.max_tokens,
                "--min-tokens: {} are more than the {} of --max-tokens", generation.min_tokens,
                generation.max_tokens);
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

std::shared_ptr<const TokenConstraint> GenerateOptions::constraint(
    AnswerGrammars* grammars, std::vector<FreePart> free_parts) const {
  if (!answer) return nullptr;
  AnswerGrammar wanted = *answer;
  wanted.free_parts = std::move(free_parts);
  try {
    return grammars->prepare(wanted);
  } catch (const Error& e) {
    const char* name = answer->kind == AnswerGrammar::Kind::json_schema ? "json-schema"
                       : answer->kind == AnswerGrammar::Kind::ebnf      ? "grammar"
                                                                        : "regex";
    fail_usage("--{}: {}", name, e.what());
  }
}

GenerationSettings settings_for(const GenerateOptions& options, const OpenedInference& opened,
                                const Tokenizer* tokenizer) {
  GenerationSettings settings = options.generation;
  const SamplingDefaults taken = models_own(options, opened.directory);
  if (const std::string said = taken.description(); !said.empty()) {
    taken.apply_to(settings.sampling);
    fmt::print(stderr, "attnres: as the model's generation_config.json has it: {}\n", said);
  }
  settings.ends = opened.directory.ends(tokenizer);
  if (tokenizer != nullptr) settings.vocabulary = tokenizer->vocab_size();
  if (options.answer && !options.chat) {
    require(tokenizer != nullptr,
            "generate: this model comes without a tokenizer that is read here, which an answer's "
            "form needs");
    AnswerGrammars grammars(*tokenizer);
    settings.constraint = options.constraint(&grammars);
  }
  try {
    check_logit_bias(settings.sampling,
                     tokenizer != nullptr ? settings.vocabulary : opened.directory.vocab_size());
  } catch (const UsageError& e) {
    fail_usage("--{}", e.what());
  }
  return settings;
}

std::vector<int32_t> fitted_prompt(std::vector<int32_t> prompt, const std::vector<int32_t>& before,
                                   int64_t context, const GenerateOptions& options) {
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
    const bool begun = std::equal(before.begin(), before.end(), prompt.begin());
    const int64_t first = begun ? std::min(std::ssize(before), kept) : 0;
    prompt.erase(prompt.begin() + first, prompt.end() - (kept - first));
  }
  return prompt;
}

}  // namespace attnres
