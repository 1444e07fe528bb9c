// The options of the generate subcommand, and what it does beside continuing one text.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/options.h"
#include "attnres/grammar/answer_grammar.h"
#include "attnres/infer/generate.h"

namespace attnres {

class AnswerGrammars;

struct GenerateOptions {
  ModelOption model;
  MachineOptions machine;
  PrecisionOption precision;
  GenerationConfigOption generation_config;
  std::string prompt, prompt_file;
  std::optional<std::string> ids_text;      // "5,17,3"
  std::optional<std::vector<int32_t>> ids;  // those of `ids_text` once they are read
  std::string prompts, out;                 // many at once, and where to
  int64_t sequences = 8;                    // of them at once
  bool deterministic = false;
  bool chat = false;
  std::string system;                           // of a conversation
  std::vector<std::string> template_arguments;  // of its template: "NAME=VALUE"
  std::string tools;                            // that its model may call: a file
  bool truncate = false;
  GenerationSettings generation;        // its logit bias is that of `biases` once they are read
  std::vector<std::string> biases;      // "ID=NUMBER"
  std::vector<std::string> stop_texts;  // not empty
  std::string json_schema, grammar, regex;
  std::optional<AnswerGrammar> answer;  // of one of these, once they are read
  bool json = false;
  // The options of sampling, by name, to tell which of them are given.
  std::map<std::string, const CLI::Option*> sampling_options = {};

  void add_to(CLI::App& command);
  // Reads the biases and token ids, and checks the settings. Throws UsageError that names the
  // option.
  void finish();
  // What the answer has to be; null: anything. Throws UsageError that names the option.
  std::shared_ptr<const TokenConstraint> constraint(AnswerGrammars* grammars,
                                                    std::vector<FreePart> free_parts = {}) const;

 private:
  void add_prompts(CLI::App& command, const std::vector<CLI::Option*>& others);
  void add_answer(CLI::App& command, CLI::Option* ids_option);
  void read_answer();
};

// Ends where the model's documents do, and takes tokens that the tokenizer has; those of the model
// where there is none (null). Options of sampling that are not given are the model's own
// (infer/sampling_defaults.h) unless --generation-config says otherwise, which is said. Throws
// UsageError on a bias of another token.
GenerationSettings settings_for(const GenerateOptions& options, const OpenedInference& opened,
                                const Tokenizer* tokenizer);

// The prompt, or with --truncate its end where the continuation needs the room, which is said;
// after `before` where it begins so. Throws Error on one that leaves no room.
std::vector<int32_t> fitted_prompt(std::vector<int32_t> prompt, const std::vector<int32_t>& before,
                                   int64_t context, const GenerateOptions& options);

// --prompts to --out. Every line is checked before anything is computed; Ctrl-C keeps what is done.
void generate_prompts(const GenerateOptions& options, const MakeInferenceModel& make);

// --chat: answers the lines of standard input. Ctrl-C ends an answer.
void chat(const GenerateOptions& options, const MakeInferenceModel& make);

}  // namespace attnres
