// The tokenize subcommand.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "app/commands.h"
#include "app/options.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/error.h"
#include "attnres/support/json.h"
#include "attnres/text/hugging_face/bpe_tokenizer.h"

namespace attnres {
namespace {

struct TokenizeOptions {
  ModelOption model;
  bool special = false;
  bool jsonl = false;
};

// Of a folder with a tokenizer's files and no model, too.
std::unique_ptr<Tokenizer> find_tokenizer(const std::filesystem::path& path) {
  const bool has_files = std::filesystem::is_directory(path) && !tokenizer_files(path).empty();
  return has_files ? load_tokenizer(path) : model_tokenizer(find_model_directory(path));
}

std::vector<int32_t> ids_of(const std::string& text, const Tokenizer& tokenizer, bool special) {
  if (!special) return tokenizer.encode(text);
  const auto* pairs = dynamic_cast<const BpeTokenizer*>(&tokenizer);
  require_usage(pairs != nullptr,
                "--special: only tokenizers of byte pairs find control tokens in a text, and this "
                "one is of the kind {}",
                tokenizer.kind());
  return pairs->encode(text, SpecialTokens::as_tokens);
}

void print_line(const std::string& text, const Tokenizer& tokenizer, bool special) {
  const std::vector<int32_t> ids = ids_of(text, tokenizer, special);
  const Json line = {{"ids", ids}, {"text", tokenizer.decode(ids)}};
  fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void run_tokenize(const TokenizeOptions& options) {
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(options.model.path);
  if (!options.jsonl) {
    const std::string text(std::istreambuf_iterator<char>(std::cin), {});
    print_line(text, *tokenizer, options.special);
    return;
  }
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    const Json text = parse_json(line, fmt::format("standard input, line {}", number));
    require(text.is_string(), "standard input, line {}: expected a text, found {}", number,
            shown(text));
    print_line(text.get<std::string>(), *tokenizer, options.special);
  }
}

}  // namespace

void add_tokenize_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("tokenize",
                         "The token ids of standard input, and the text that they are, as JSON.\n"
                         "Takes a folder with a tokenizer's files, too: a model is not needed.");
  const auto options = std::make_shared<TokenizeOptions>();
  options->model.add_to(*command);
  command->add_flag("--special", options->special,
                    "control tokens that the text names are control tokens, not text");
  command->add_flag("--jsonl", options->jsonl,
                    "each line of the input is a text, written as a JSON string");
  command->footer(
      "Examples:\n"
      "  attnres tokenize --model models/tiny-shakespeare < book.txt\n"
      "  attnres tokenize --model downloads/qwen --jsonl < texts.jsonl");
  command->callback([options] { run_tokenize(*options); });
}

}  // namespace attnres
