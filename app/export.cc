// The export subcommand.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/options.h"
#include "attnres/depth/mechanisms/block_attn_res.h"
#include "attnres/formats/architectures.h"
#include "attnres/formats/gguf_model.h"
#include "attnres/formats/gguf_reader.h"
#include "attnres/model/retrofit.h"
#include "attnres/pretrained/gguf_tokenizer.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

struct ExportOptions {
  ModelOption model;
  std::string out;
  std::string format = "safetensors";
  std::string type = "f32";
  bool approximate = false;
};

at::ScalarType storage_type(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  if (name == "f16") return at::kHalf;
  return at::kFloat;
}

std::vector<std::string> file_type_names() {
  std::vector<std::string> names;
  for (const GgufFileType& type : kGgufFileTypes) names.emplace_back(type.name);
  return names;
}

void write_directory(const OpenedModel& opened, const ExportOptions& options) {
  const ModelConfig& config = opened.model->config();
  const bool is_public = options.format == "huggingface";
  save_model_folder_like(options.out, *opened.model, opened.directory, opened.context,
                         storage_type(options.type),
                         is_public ? public_layout(config) : layout_of(config));
  fmt::print("{}: {} parameters as {}\n", options.out, opened.model->parameters().count(),
             options.type);
  std::string why;
  if (opened.directory.gguf() != nullptr && opened.tokenizer_if_read(&why) == nullptr) {
    fmt::print("no tokenizer: {}\n", why);
  }
}

// llama.cpp ends a text at two more tokens: the end of a turn, and of a message.
void add_other_ends(const OpenedModel& opened, const Tokenizer& tokenizer, GgufMetadata& keys) {
  std::vector<int64_t> ends = opened.directory.ends(nullptr);
  std::erase_if(ends, [&](int64_t id) {
    return id < 0 || id >= opened.model->vocab_size() || id == tokenizer.end_of_document();
  });
  constexpr std::array kNames = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
  for (size_t i = 0; i < std::min(ends.size(), kNames.size()); ++i) {
    keys.emplace_back(kNames[i], static_cast<uint32_t>(ends[i]));
  }
}

// The keys that a GGUF file has; where no tokenizer is read, those that say that there is none.
GgufMetadata tokenizer_keys(const OpenedModel& opened, const Tokenizer* tokenizer) {
  if (const GgufFile* file = opened.directory.gguf()) return gguf_tokenizer_of(*file);
  if (tokenizer == nullptr) return gguf_without_tokenizer();
  GgufMetadata keys = gguf_tokenizer(*tokenizer, opened.model->vocab_size());
  add_other_ends(opened, *tokenizer, keys);
  return keys;
}

void write_gguf_file(const OpenedModel& opened, const ExportOptions& options) {
  std::string why;
  const auto tokenizer = opened.tokenizer_if_read(&why);
  save_gguf(*opened.model, options.out, opened.context, tokenizer_keys(opened, tokenizer.get()),
            gguf_file_type(options.type));
  fmt::print("{}: {} parameters as {}, for llama.cpp's {}\n", options.out,
             opened.model->parameters().count(), options.type,
             gguf_architecture(opened.model->config()));
  if (tokenizer == nullptr) {
    fmt::print("{}\n", opened.directory.gguf() != nullptr
                           ? "tokenizer carried along unread: " + why
                           : "without a tokenizer, so llama.cpp takes token ids only: " + why);
  }
}

// One eps for all sites in place of one for each number of sources.
std::unique_ptr<Transformer> with_one_eps(const Transformer& model) {
  constexpr int64_t kTokensCompared = 256;
  const DepthMixing& mixing = model.config().depth_mixing;
  const AttnResSettings* settings = attn_res_settings(mixing);
  require(settings != nullptr && !settings->has_one_norm_eps(),
          "--approximate: this model has nothing that a file could only approximate; leave it out");
  Json with_one = mixing.to_json();
  with_one.erase("norm_eps");
  auto approximate = with_depth_mixing(model, DepthMixing(with_one, model.config().mixer_shape()));
  fmt::print("norms with one eps: log-probabilities of {} random tokens differ by at most {:.1e}\n",
             kTokensCompared, largest_difference(model, *approximate, kTokensCompared));
  return approximate;
}

void run_export(const ExportOptions& options) {
  const bool gguf = options.format == "gguf";
  require_usage(gguf || !options.type.starts_with('q'),
                "--type {}: safetensors do not store it; use --format gguf, or bf16", options.type);
  require_new("--out", options.out, gguf ? "file" : "folder");
  OpenedModel opened = open_model(options.model);
  if (options.approximate) opened.model = with_one_eps(*opened.model);
  if (options.format == "huggingface") public_layout(opened.model->config());
  write_new("--out", options.out, gguf ? "file" : "folder",
            [&] { gguf ? write_gguf_file(opened, options) : write_directory(opened, options); });
}

}  // namespace

void add_export_command(CLI::App& app) {
  CLI::App& command =
      *app.add_subcommand("export",
                          "Write a model for other programs, as a directory or a GGUF file. The "
                          "directory has Hugging Face's layout, the file is for llama.cpp; "
                          "weights are stored in the number format that you choose.");
  const auto options = std::make_shared<ExportOptions>();
  options->model.add_to(command);
  add_path(command, "--out PATH", options->out, "the new model directory or GGUF file")->required();
  add_option(
      command, "--format FORMAT", options->format,
      "safetensors: a directory; huggingface: the same, but only as an architecture that other "
      "programs know (docs/models.md); gguf: one file with the tokenizer in it, for llama.cpp")
      ->check(one_word_of({"safetensors", "huggingface", "gguf"}))
      ->capture_default_str();
  add_option(
      command, "--type TYPE", options->type,
      "how weights are stored: f32, bf16 or f16, with --format gguf also q8_0, q4_0 or a mixture "
      "of llama.cpp's: q4_k_s, q4_k_m, q5_k_m, q6_k")
      ->check(one_word_of(file_type_names()))
      ->capture_default_str();
  command.add_flag("--approximate", options->approximate,
                   "of a retrofitted model: have one eps in all norms, as other programs' files "
                   "do, and say what that changes");
  command.footer(
      "Examples:\n"
      "  attnres export --model runs/tiny --type bf16 --out models/tiny\n"
      "  attnres export --model runs/tiny --format gguf --type q8_0 --out tiny.gguf");
  command.callback([options] { run_export(*options); });
}

}  // namespace attnres
