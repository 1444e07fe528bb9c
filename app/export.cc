// The export subcommand.
#include <fmt/core.h>

#include <memory>

#include "app/commands.h"
#include "app/options.h"
#include "attnres/formats/model_directory.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

struct ExportOptions {
  ModelOption model;
  std::string out;
  std::string type = "f32";
};

at::ScalarType storage_type(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  if (name == "f16") return at::kHalf;
  return at::kFloat;
}

void run_export(const ExportOptions& options) {
  const OpenedModel opened = open_model(options.model);
  const auto tokenizer = opened.tokenizer();
  require(!fs::exists(options.out), "--out {}: is there already; name a folder that is not",
          options.out);
  write_folder(options.out, [&](const fs::path& folder) {
    save_model(*opened.model, folder, opened.context, tokenizer->end_of_document(),
               storage_type(options.type));
    tokenizer->save(folder);
  });
  fmt::print("{}: {} parameters as {}\n", options.out, opened.model->parameters().count(),
             options.type);
}

}  // namespace

void add_export_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("export",
                         "Write a model as a directory of its own in Hugging Face's layout, in the "
                         "number format asked "
                         "for.\nA model with plain residual connections is a Llama directory.");
  const auto options = std::make_shared<ExportOptions>();
  options->model.add_to(*command);
  command->add_option("--out", options->out, "the new model directory")
      ->type_name("DIR")
      ->required();
  command->add_option("--type", options->type, "how weights are stored: f32, bf16 or f16")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->type_name("TYPE")
      ->capture_default_str();
  command->footer("Example:\n  attnres export --model runs/tiny --type bf16 --out models/tiny");
  command->callback([options] { run_export(*options); });
}

}  // namespace attnres
