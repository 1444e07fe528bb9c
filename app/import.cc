// The import subcommand.
#include <fmt/core.h>

#include <memory>

#include "app/commands.h"
#include "app/options.h"
#include "attnres/data/corpus.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

struct ImportOptions {
  std::string from;
  std::string out;
  bool bytes = false;
};

// Whether text can be read with what the folder has of a tokenizer.
std::string describe_tokenizer(const OpenedModel& opened) {
  std::string why;
  if (const auto tokenizer = opened.tokenizer_if_read(&why)) {
    return fmt::format("{} tokenizer of {}", tokenizer->kind(), tokenizer->vocab_size());
  }
  if (opened.directory.gguf() != nullptr) return "no tokenizer\n" + why;
  const std::vector<std::filesystem::path> files =
      tokenizer_files(opened.directory.tokenizer_folder());
  std::string names;
  for (const auto& file : files) names += (names.empty() ? "" : ", ") + file.filename().string();
  return files.empty() ? "no tokenizer"
                       : fmt::format("tokenizer carried along unread: {}\n{}", names, why);
}

std::unique_ptr<Tokenizer> byte_tokenizer(const OpenedModel& opened) {
  auto tokenizer = make_tokenizer(TokenizerConfig{}, {});
  require(tokenizer->vocab_size() <= opened.model->vocab_size(),
          "--bytes: the byte tokenizer has {} tokens, but the model embeds only {}",
          tokenizer->vocab_size(), opened.model->vocab_size());
  return tokenizer;
}

void run_import(const ImportOptions& options) {
  require_new("--out", options.out, "folder");
  const OpenedModel opened = open_model({options.from});
  const Transformer& model = *opened.model;
  std::string tokenizer = "byte tokenizer";
  if (!options.bytes) tokenizer = describe_tokenizer(opened);
  write_new("--out", options.out, "folder", [&] {
    if (options.bytes) {
      save_model_folder(options.out, model, *byte_tokenizer(opened), opened.context);
    } else {
      save_model_folder_like(options.out, model, opened.directory, opened.context);
    }
  });
  fmt::print("{}: {} parameters, {} of width {}, {}\n", options.out, model.parameters().count(),
             counted(model.config().layers, "layer"), model.config().width, tokenizer);
}

}  // namespace

void add_import_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "import",
      "Make a model directory of a Hugging Face folder or a GGUF file. Reads Llama, Mistral, "
      "Mixtral, Qwen 2 and 3, SmolLM 3, Gemma 3, gpt-oss, DeepSeek-V3, Kimi Linear and Kimi K3 "
      "(safetensors, in shards or not), and writes a directory that every command takes, weights "
      "in float32.");
  const auto options = std::make_shared<ImportOptions>();
  add_path(command, "--from PATH", options->from, "the folder, or the GGUF file, to read")
      ->required();
  add_path(command, "--out DIR", options->out, "the new model directory")->required();
  command.add_flag("--bytes", options->bytes,
                   "give it the byte tokenizer, whatever tokenizer the folder has");
  command.footer("Example:\n  attnres import --from downloads/llama --out models/llama");
  command.callback([options] { run_import(*options); });
}

}  // namespace attnres
