// The tokenize subcommand.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "app/commands.h"
#include "app/options.h"
#include "app/tokenize_folder.h"
#include "attnres/formats/gguf_reader.h"
#include "attnres/pretrained/chat_template_files.h"
#include "attnres/pretrained/gguf_tokenizer.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"
#include "attnres/text/hugging_face/bpe_tokenizer.h"

namespace attnres {
namespace {

struct TokenizeOptions {
  MachineOptions machine;
  ModelOption model;
  TokenizeFolderOptions folder;
  std::string trained;   // the kind
  std::string verified;  // a folder
  int64_t vocab_size = 16384;
  bool special = false;
  bool framed = false;
  bool jsonl = false;
};

struct FoundTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  ChatTemplate chat;
  bool has_model;  // beside it
};

// Finds it in a model, which need not be one that is computed here, or a folder with its files.
FoundTokenizer find_tokenizer(const std::filesystem::path& path) {
  const bool has_files =
      path_exists(path) && std::filesystem::is_directory(path) && !tokenizer_files(path).empty();
  const std::filesystem::path found = has_files ? path : find_model_or_name(path.string());
  if (is_gguf_file(found)) {
    const GgufFile file(found);
    return {read_gguf_tokenizer(file), read_chat_template(file), /*has_model=*/true};
  }
  return {load_tokenizer(found), read_chat_template(found), has_tensor_files(found)};
}

std::vector<int32_t> ids_of(const std::string& text, const Tokenizer& tokenizer,
                            const TokenizeOptions& options) {
  if (options.framed) return encode_framed(text, tokenizer);
  if (!options.special) return tokenizer.encode(text);
  const auto* pairs = dynamic_cast<const BpeTokenizer*>(&tokenizer);
  require_usage(pairs != nullptr,
                "--special: only tokenizers of byte pairs find control tokens in a text, and this "
                "one is of the kind {}",
                tokenizer.kind());
  return pairs->encode(text, SpecialTokens::as_tokens);
}

void print_line(const std::string& text, const Tokenizer& tokenizer,
                const TokenizeOptions& options) {
  const std::vector<int32_t> ids = ids_of(text, tokenizer, options);
  const Json line = {{"ids", ids}, {"text", tokenizer.decode(ids)}};
  fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void run_tokenize(const TokenizeOptions& options) {
  options.machine.apply();
  if (!options.folder.out.empty()) require_out_beside(options.folder.out, options.folder.data);
  if (!options.verified.empty()) {
    require_usage(options.model.path.empty() && options.trained.empty() &&
                      options.folder.data.empty() && options.folder.out.empty(),
                  "--verify looks at a folder that was written, and takes nothing else");
    verify_folder(options.verified);
    return;
  }
  require_usage(options.model.path.empty() != options.trained.empty(),
                "--model: name what has the tokenizer, or train one (--train, with --out)");
  if (!options.trained.empty()) {
    tokenize_with_own(options.folder, {options.trained, options.vocab_size});
    return;
  }
  const FoundTokenizer found = find_tokenizer(options.model.path);
  TokenizeFolderOptions folder = options.folder;
  if (found.has_model) folder.model = options.model.path;
  require_usage(folder.out.empty() || (!options.special && !options.framed && !options.jsonl),
                "--special, --add-special-tokens and --jsonl are for standard input, not for files "
                "(--out)");
  if (!folder.out.empty()) {
    tokenize_into_folder(folder, *found.tokenizer, found.chat);
    return;
  }
  require_usage(folder.data.empty() && folder.field.empty() && !folder.chat && !folder.strict,
                "--data, --field, --chat and --strict are for files: name a folder for their "
                "tokens (--out)");
  if (!options.jsonl) {
    print_line(read_input(), *found.tokenizer, options);
    return;
  }
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    const Json text = parse_json(line, fmt::format("standard input, line {}", number));
    require(text.is_string(), "standard input, line {}: expected a text, found {}", number,
            shown(text));
    print_line(text.get<std::string>(), *found.tokenizer, options);
  }
}

}  // namespace

void add_tokenize_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "tokenize",
      "Turn text into token ids; of any size, into a folder to train on. Prints the token ids of "
      "standard input, and the text that they are, as JSON. With --out, files of any size become "
      "a folder that train --data takes.");
  const auto options = std::make_shared<TokenizeOptions>();
  options->model.add_to(command)->required(false)->description(
      "what has the tokenizer: a model directory, a run's folder, a GGUF file, or a folder "
      "with a tokenizer's files alone");
  CLI::Option* special =
      command.add_flag("--special", options->special,
                       "control tokens that the text names are control tokens, not text");
  command
      .add_flag("--add-special-tokens", options->framed,
                "with those that the tokenizer puts before and after a text, as of prompts the "
                "begin-of-text token")
      ->excludes(special);
  command.add_flag("--jsonl", options->jsonl,
                   "each line of standard input is a text, written as a JSON string");
  add_path(
      command, "--data PATH", options->folder.data,
      "files, folders and patterns (\"*.jsonl.gz\") of plain text, a document in each file, or "
      "of JSON lines (.jsonl, .ndjson, .json); both also compressed by gzip or zstd");
  add_path(command, "--out DIR", options->folder.out,
           "write the tokens into this folder; the same command goes on where it was stopped");
  add_option(command, "--train KIND", options->trained,
             "in place of --model: train a tokenizer on the data first, bpe or sentencepiece")
      ->check(one_word_of({"bpe", "sentencepiece"}));
  add_whole(command, "--vocab-size N", options->vocab_size, {1}, "with --train, how many tokens")
      ->capture_default_str();
  add_option(command, "--field NAME", options->folder.field,
             "of JSON lines, what to take (default: text; with --chat, messages)");
  command.add_flag("--chat", options->folder.chat,
                   "the field is a list of messages; render it by the model's template, and train "
                   "on the answers only");
  command.add_flag("--strict", options->folder.strict,
                   "end at the first line that cannot be read, in place of leaving it out");
  add_whole(command, "--tokens-a-file N", options->folder.tokens_a_file, {1},
            "about how many tokens go into a file; so many at most are done again after a kill")
      ->capture_default_str();
  add_path(command, "--verify DIR", options->verified,
           "read a folder of tokens again, and say whether all of it is as it was written");
  options->machine.add_threads_to(command);
  group_options(command, "Files of any size, into a folder",
                {"--data", "--out", "--train", "--vocab-size", "--field", "--chat", "--strict",
                 "--tokens-a-file", "--verify"});
  command.footer(
      "Examples:\n"
      "  attnres tokenize --model models/tiny-shakespeare < book.txt\n"
      "  attnres tokenize --model downloads/qwen --jsonl < texts.jsonl\n"
      "  attnres tokenize --model downloads/qwen --data web/*.jsonl.zst --out tokens/web\n"
      "  attnres tokenize --train bpe --data web/*.jsonl.zst --out tokens/web\n"
      "  attnres tokenize --model downloads/qwen --chat --data chats.jsonl --out tokens/chats\n"
      "  attnres tokenize --verify tokens/web");
  command.callback([options] { run_tokenize(*options); });
}

}  // namespace attnres
